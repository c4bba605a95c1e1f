"""The keep-alive pool to the API server, renewed when its files were replaced or its peer is dead.

In: `Credentials`. Out: a urllib3 pool for requests, or a separate connection for a stream. It knows nothing of
Kubernetes objects.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.util import parse_url

from dra_driver.kube.bounds import BoundedHttp, BoundedHttps
from dra_driver.kube.kubeconfig import Credentials
from dra_driver.kube.tls import TlsMaterial
from dra_driver.model.errors import ApiError, Retry

CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 10.0  # how often to look for replaced CA and certificate files
# A dead peer (node gone, connection forgotten by a firewall) is noticed within about a minute, even by a silent watch.
_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 45_000),
]


class Connections:
    """Connections to one API server. All methods may be called from any thread."""

    def __init__(self, credentials: Credentials, *, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        url = parse_url(credentials.server)
        self._tls, self._size, self._clock = credentials.tls, size, clock
        self._host, self._port = url.host or "", url.port
        self.prefix = (url.path or "").rstrip("/")
        self._lock = threading.Lock()
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[object, ...] = ()
        self._look_at = 0.0
        if self._tls and self._tls.is_unverified:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def pool(self) -> urllib3.HTTPConnectionPool:
        """Return the pool to use now. Raises: ApiError("api.tls-files")."""
        with self._lock:
            self._refresh()
            if self._pool is None:
                self._pool = self._new_pool()
            return self._pool

    def renew(self, pool: urllib3.HTTPConnectionPool) -> None:
        """Drop a pool whose connections may all be dead, and check the files again at once."""
        with self._lock:
            if self._pool is pool:
                self._pool = None
                self._look_at = 0.0
        pool.close()

    def stream_connection(self, *, head_s: float) -> HTTPConnection:
        """Return a new connection outside the pool; the head of its answer may take `head_s` seconds.

        Raises: ApiError("api.tls-files"); urllib3 and OS errors of connecting.
        """
        with self._lock:
            self._refresh()
        connection = self._new_connection()
        connection.connect()
        connection.timeout = head_s
        return connection

    def close(self) -> None:
        """Close idle connections; one in use is closed when its user returns it."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _refresh(self) -> None:
        """Build the TLS context if there is none, or if a file behind it has changed."""
        if self._tls is None or self._clock() < self._look_at:
            return
        self._look_at = self._clock() + _LOOK_SECONDS
        stamp = self._tls.stamp()
        if self._context is not None and stamp == self._stamp:
            return
        context = _context_of(self._tls, self._context)
        if context is not self._context and self._pool is not None:
            self._pool.close()
            self._pool = None
        self._context, self._stamp = context, stamp

    def _tls_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"ssl_context": self._context}
        if self._tls and self._tls.server_name:
            options["server_hostname"] = self._tls.server_name
        if self._tls and self._tls.is_unverified:
            options["cert_reqs"] = ssl.CERT_NONE
        return options

    def _new_pool(self) -> urllib3.HTTPConnectionPool:
        options: dict[str, Any] = {"maxsize": self._size, "block": True, "socket_options": _SOCKET_OPTIONS}
        pool: urllib3.HTTPConnectionPool
        if self._tls is None:
            pool = urllib3.HTTPConnectionPool(self._host, self._port, **options)
            pool.ConnectionCls = BoundedHttp  # type: ignore[assignment]  # the protocol demands more than is used
        else:
            pool = urllib3.HTTPSConnectionPool(self._host, self._port, **options, **self._tls_options())
            pool.ConnectionCls = BoundedHttps  # type: ignore[assignment]
        return pool

    def _new_connection(self) -> HTTPConnection:
        options: dict[str, Any] = {"timeout": CONNECT_SECONDS, "socket_options": _SOCKET_OPTIONS}
        host = self._host.strip("[]")
        if self._tls is None:
            return BoundedHttp(host, self._port, **options)
        return BoundedHttps(host, self._port, **options, **self._tls_options())


def _context_of(tls: TlsMaterial, last: ssl.SSLContext | None) -> ssl.SSLContext:
    """Build a context; keep using the last one while files are only half written."""
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
