"""Httpd: the standard library's HTTP server on the loopback interface, with a thread for each connection.

In: HTTP. Out: an `HttpRequest` to the application, and its `Response` or `Stream` back to the client. It knows nothing
of Kubernetes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dra_driver.simulator.shapes import ApiRefusal


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. Header names are in lower case; if a query key is repeated, its last value counts."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    is_gone: Callable[[], bool] = field(default=lambda: False, compare=False)  # returns whether the client has hung up


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that is sent as a whole."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is sent piece by piece, each as one chunk; nothing is sent for an empty piece."""

    pieces: Iterator[bytes]
    content_type: str = "application/json"


Application = Callable[[HttpRequest], Response | Stream | None]
"""A function that returns the answer; None closes the connection without an answer, as a server that crashes does."""


class LoopbackServer:
    """Serves an application on a free port of the loopback interface."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._server: _Server | None = None

    def start(self, port: int = 0) -> int:
        """Listen and serve; return the port. With `port` 0 the system chooses one."""
        server = self._server = _Server(("127.0.0.1", port), partial(_ApiHandler, self._application))
        threading.Thread(target=server.serve_forever, args=(0.05,), name="embedded-api", daemon=True).start()
        return int(server.server_address[1])

    def stop(self) -> None:
        """Stop listening and close all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.close_connections()

    def close_connections(self) -> None:
        """Close every open connection, as a server that crashes would."""
        if self._server is not None:
            self._server.close_connections()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    block_on_close = False  # a watch ends with its connection

    def __init__(self, address: tuple[str, int], handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember a connection, and serve it in a thread of its own."""
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection, and close it."""
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore an error: the peer has hung up, or does not speak HTTP."""

    def close_connections(self) -> None:
        """Close every open connection at once."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _ApiHandler(BaseHTTPRequestHandler):
    """Hands the requests of one connection to the application."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one write

    def __init__(self, application: Application, *args: Any) -> None:
        self._application = application
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer a request of any method."""
        self._answer(self._application(self._request()))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _request(self) -> HttpRequest:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return HttpRequest(self.command, unquote(parts.path), query, headers, body, lambda: _is_gone(self.connection))

    def _answer(self, answer: Response | Stream | None) -> None:
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status if isinstance(answer, Response) else 200)
        self.send_header("Content-Type", answer.content_type)
        if isinstance(answer, Stream):
            self._stream(answer)
            return
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _stream(self, answer: Stream) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for piece in answer.pieces:
            if piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep requests out of the log."""


def _is_gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


# Injected faults: failures that a test sets up in the embedded API, and the record of requests.

WRITES = ("POST", "PUT", "PATCH", "DELETE")
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One answered request. `at` is the time of the answer by time.monotonic(), in seconds."""

    method: str
    path: str
    query: dict[str, str]
    status: int
    took_s: float
    at: float
    user_agent: str

    @property
    def is_write(self) -> bool:
        """Whether the request was a write."""
        return self.method in WRITES


class RequestLog:
    """The last requests (at most `keep`), and the number of all requests by method."""

    def __init__(self, keep: int = 10_000) -> None:
        self._lock = threading.Lock()
        self._entries: deque[LoggedRequest] = deque(maxlen=keep)
        self.counts: dict[str, int] = {}

    def add(self, request: HttpRequest, status: int, took_s: float) -> None:
        """Record one answer."""
        agent = request.headers.get("user-agent", "")
        entry = LoggedRequest(request.method, request.path, request.query, status, took_s, time.monotonic(), agent)
        with self._lock:
            self._entries.append(entry)
            self.counts[request.method] = self.counts.get(request.method, 0) + 1

    def entries(self, *, method: str = "", contains: str = "") -> list[LoggedRequest]:
        """Return the recorded requests of a method ("" for all) whose path contains a text."""
        with self._lock:
            return [e for e in self._entries if (not method or e.method == method) and contains in e.path]

    def writes(self, contains: str = "") -> list[LoggedRequest]:
        """Return the recorded writes whose path contains a text."""
        return [e for e in self.entries(contains=contains) if e.is_write]

    def clear(self) -> None:
        """Forget all requests so far."""
        with self._lock:
            self._entries.clear()
            self.counts.clear()


@dataclass(slots=True)
class _InjectedFault:
    status: int
    left: int
    method: str
    contains: str
    retry_after_s: int

    def is_for(self, request: HttpRequest) -> bool:
        return self.left > 0 and (not self.method or self.method == request.method) and self.contains in request.path


class InjectedFaults:
    """The faults that a test has set up. `latency_s` delays every answer by that many seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[_InjectedFault] = []
        self.latency_s = 0.0

    def fail_next(
        self,
        status: int,
        *,
        count: int = 1,
        method: str = "",
        contains: str = "",
        retry_after_s: int = 0,
    ) -> None:
        """Answer `status` to the next `count` requests of a method ("" for all) whose path contains a text.

        With status 0 the connection is closed without an answer.
        """
        with self._lock:
            self._faults.append(_InjectedFault(status, count, method, contains, retry_after_s))

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()
            self.latency_s = 0.0

    def apply(self, request: HttpRequest) -> bool:
        """Apply the fault set up for this request, if any; return whether to close the connection without an answer.

        Raises: ApiRefusal with the status of that fault.
        """
        if self.latency_s:
            time.sleep(self.latency_s)
        with self._lock:
            fault = next((o for o in self._faults if o.is_for(request)), None)
            if fault is None:
                return False
            fault.left -= 1
        if fault.status == 0:
            return True
        reason = _REASONS.get(fault.status, "Unknown")
        raise ApiRefusal(fault.status, reason, f"injected by a test: {reason}", retry_after_s=fault.retry_after_s)
