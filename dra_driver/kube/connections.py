"""The kept connections to the API server, renewed when certificate files were replaced or the peer is dead.

In: `Credentials`. Out: a connection lent for one request (the most recently used one first), or a separate connection
for a stream. It knows nothing of Kubernetes objects.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from ssl import SSLError
from urllib.parse import urlsplit

from dra_driver.base.errors import ApiError, Retry
from dra_driver.kube import answers
from dra_driver.kube.connection import Address, CertificateError, Connection, HttpResponse
from dra_driver.kube.kubeconfig import Credentials, TlsMaterial

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


# LineStream: an HTTP answer that comes line by line and can be closed from another thread at any moment.

_PIECE_BYTES = 64 * 1024
_REFUSAL_BYTES = 64 * 1024
LINE_BYTES = 4 << 20  # the store of an API server takes objects of up to 1.5 MiB in its own, shorter format
HEAD_SECONDS = 30.0  # how long to wait for a stream to begin
LINE_SECONDS = 30.0  # the longest time from the first byte of a line to its last

Connect = Callable[[], tuple[Connection, str, dict[str, str]]]


class LineStream:
    """One streamed GET. `open` and `lines` are for one thread, `close` for any."""

    def __init__(
        self,
        connect: Connect,
        reread_token: Callable[[], bool],
        path: str,
        *,
        max_s: float,
        line_s: float = LINE_SECONDS,
    ) -> None:
        self._connect, self._reread_token, self._path = connect, reread_token, path
        self._max_s, self._line_s = max_s, line_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._answer: HttpResponse | None = None
        self._is_closed = False

    def open(self) -> None:
        """Connect, send the request and read the answer's head. Raises: ApiError, also after `close`."""
        answer = self._ask()
        if answer.status == 401 and self._reread_token():
            self._drop()
            answer = self._ask()
        if answer.status != 200:
            raise self._refusal(answer)
        self._answer = answer
        if answer.is_encoded:
            raise answers.bad_answer(f"GET {self._path}: the answer is compressed, which was not asked for", 200)

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its line end, until the server ends the stream or `close` is called.

        Raises: ApiError("api.stream-broken") if the connection fails, is silent for too long, or sends a line
        that does not end.
        """
        if self._answer is None:
            return
        bounds = self._answer.bounds
        over_at = bounds.until = time.monotonic() + self._max_s
        line = bytearray()
        while True:
            with self._translated("stream-broken"):
                piece = self._answer.piece(_PIECE_BYTES)
            if not piece or self._is_closed:
                return
            is_begun = bool(line)
            *ends, rest = piece.split(b"\n")
            for end in ends:
                whole, line = bytes(line + end), bytearray()
                if whole.strip():
                    yield whole
            line += rest
            if len(line) > LINE_BYTES:
                raise ApiError("stream-broken", f"GET {self._path}: a line is too large", retry=Retry.NOW)
            if ends:
                bounds.allow_body()
            if ends or not is_begun:
                bounds.until = min(over_at, time.monotonic() + self._line_s) if line else over_at

    def close(self) -> None:
        """End the stream now. This may be called twice, and before `open`."""
        with self._lock:
            self._is_closed = True
            connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # SSLSocket.shutdown would drop the TLS state while the reader uses it: shut the plain socket down.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the connection; called by the reading thread when it is done."""
        self.close()
        self._drop()

    def _ask(self) -> HttpResponse:
        with self._translated("unreachable"):
            connection, target, headers = self._connect()
            with self._lock:
                self._connection = connection
                if self._is_closed:
                    raise ConnectionAbortedError("closed")
            until = time.monotonic() + min(HEAD_SECONDS, self._max_s)
            return connection.ask("GET", target, headers, None, until)

    def _refusal(self, answer: HttpResponse) -> ApiError:
        with self._translated("unreachable"):
            body = bytearray()
            while len(body) < _REFUSAL_BYTES and (piece := answer.piece(_REFUSAL_BYTES)):
                body += piece
        try:
            decoded = answers.parse(bytes(body))
        except ValueError:
            decoded = None
        retry_after = answer.headers.get("retry-after", "")
        return answers.refusal(answer.status, decoded, retry_after, method="GET", path=self._path)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _translated(self, code: str) -> Iterator[None]:
        """Turn the connection's errors into ApiErrors."""
        try:
            yield
        except (CertificateError, SSLError) as err:
            raise ApiError("tls", f"GET {self._path}: {err}", retry=Retry.LATER) from err
        except (OSError, ValueError) as err:
            raise ApiError(code, f"GET {self._path}: {err!r}", retry=Retry.NOW) from err
