"""Httpd: the standard library's HTTP server on the loopback interface, with a thread for each connection.

In: HTTP. Out: an `HttpRequest` to the application, and its `Response` or `Stream` back to the client. It knows nothing
of Kubernetes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


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
