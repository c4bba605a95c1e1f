"""The kept connections to the API server, renewed when certificate files were replaced or the peer is dead.

In: `Credentials`. Out: a connection lent for one request (the most recently used one first), or a separate connection
for a stream. It knows nothing of Kubernetes objects.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from dra_driver.kube.credentials.kubeconfig import Credentials
from dra_driver.kube.credentials.tls import TlsMaterial
from dra_driver.kube.transport.connection import Address, Connection
from dra_driver.model.errors import ApiError, Retry

CONNECT_SECONDS = 5.0
_MIN_S = 0.001
_CHECK_SECONDS = 10.0  # how often to look for replaced CA and certificate files


class Connections:
    """At most `size` connections to one API server. All methods may be called from any thread."""

    def __init__(self, credentials: Credentials, *, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._tls, self._clock = credentials.tls, clock
        self._address = _address_of(credentials.server, credentials.tls)
        self.prefix = urlsplit(credentials.server).path.rstrip("/")
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(size)
        self._idle: list[Connection] = []
        self._generation = 0
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[object, ...] = ()
        self._check_at = 0.0

    def acquire(self, until: float) -> Connection:
        """Lend a connection for one request, after which the caller releases it. `until` is a time of `time.monotonic`.

        Raises: ApiError("api.tls-files"), TimeoutError if all connections are in use until then; errors of connecting.
        """
        if not self._room.acquire(timeout=max(_MIN_S, until - time.monotonic())):
            raise TimeoutError("all connections are in use")
        try:
            return self._kept() or self._connected(until - time.monotonic())
        except BaseException:
            self._room.release()
            raise

    def release(self, connection: Connection, *, has_failed: bool) -> None:
        """Take a connection back after its request.

        It is kept if its answer was read to the end; after an error all connections of its generation are dropped.
        """
        try:
            if has_failed:
                self.discard_generation(connection.generation)
            elif connection.is_ready:
                with self._lock:
                    if connection.generation == self._generation:
                        self._idle.append(connection)
                        return
            connection.close()
        finally:
            self._room.release()

    def discard_generation(self, generation: int) -> None:
        """Drop a generation whose connections may all be dead, and check the files again at once."""
        with self._lock:
            if self._generation == generation:
                self._next_generation()
                self._check_at = 0.0

    def own_connection(self) -> Connection:
        """Return a new connection that is not among the kept ones.

        Raises: ApiError("api.tls-files"); errors of connecting.
        """
        return self._connected(CONNECT_SECONDS)

    def close(self) -> None:
        """Close idle connections; one in use is closed when its user returns it."""
        with self._lock:
            self._next_generation()

    def _kept(self) -> Connection | None:
        """Return an idle connection that is still open on the other side, or None."""
        while True:
            with self._lock:
                self._refresh()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()

    def _connected(self, seconds: float) -> Connection:
        with self._lock:
            self._refresh()
            context, generation = self._context, self._generation
        seconds = max(_MIN_S, min(CONNECT_SECONDS, seconds))
        try:
            return Connection(self._address, context, seconds, generation=generation)
        except BaseException:
            self.discard_generation(generation)
            raise

    def _refresh(self) -> None:
        """Build the TLS context if there is none, or if a file behind it has changed."""
        if self._tls is None or self._clock() < self._check_at:
            return
        self._check_at = self._clock() + _CHECK_SECONDS
        stamp = self._tls.stamp()
        if self._context is not None and stamp == self._stamp:
            return
        context = _context_of(self._tls, self._context)
        if context is not self._context:
            self._next_generation()
        self._context, self._stamp = context, stamp

    def _next_generation(self) -> None:
        idle, self._idle = self._idle, []
        self._generation += 1
        for connection in idle:
            connection.close()


def _address_of(server: str, tls: TlsMaterial | None) -> Address:
    url = urlsplit(server)
    host = url.hostname or ""
    written = f"[{host}]" if ":" in host else host
    field = f"{written}:{url.port}" if url.port else written
    if tls is None:
        return Address(host, url.port or 80, field)
    return Address(host, url.port or 443, field, name=tls.server_name or host)


def _context_of(tls: TlsMaterial, last: ssl.SSLContext | None) -> ssl.SSLContext:
    """Build a TLS context, or return the last one while files are only half written."""
    try:
        return tls.context()
    except OSError as err:
        if last is not None:
            return last
        raise ApiError(
            "tls-files",
            f"certificates for the API server can't be read: {err}",
            hint="check the CA, certificate and key files of the kubeconfig",
            retry=Retry.LATER,
        ) from err
