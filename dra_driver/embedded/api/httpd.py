"""Httpd: a small HTTP/1.1 server with keep-alive, a thread for each connection, chunked streams and undelayed writes.

In: bytes on a loopback socket. Out: an `HttpRequest` to the application, and its `Response` or `Stream` back to the
client. It knows nothing of Kubernetes. (The stdlib's handler parses headers as mail, which costs more than a whole GET
here.)
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO, cast
from urllib.parse import parse_qsl, unquote, urlsplit

_LINE = 65536  # the most bytes of one header line
_HEADERS = 100  # the most headers of one request


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
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._acceptor: threading.Thread | None = None

    def start(self, port: int = 0) -> int:
        """Listen and serve; return the port. With `port` 0 the system chooses one."""
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="embedded-api", daemon=True)
        self._acceptor.start()
        return int(listener.getsockname()[1])

    def stop(self) -> None:
        """Stop listening and close all connections."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self.close_connections()
        if self._acceptor is not None:
            self._acceptor.join(5)

    def close_connections(self) -> None:
        """Close every open connection, as a server that crashes would."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections.add(connection)
            threading.Thread(
                target=self._serve_connection, args=(connection,), name="embedded-api-connection", daemon=True
            ).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        reader = cast("BinaryIO", connection.makefile("rb", buffering=_LINE))
        try:
            while (request := _read(reader, connection)) is not None:
                if not self._answer(connection, request):
                    break
        except (OSError, ValueError):
            pass  # the peer has hung up, or does not speak HTTP
        finally:
            with self._lock:
                self._connections.discard(connection)
            reader.close()
            connection.close()

    def _answer(self, connection: socket.socket, request: HttpRequest) -> bool:
        """Send the answer, and return whether the connection stays open."""
        answer = self._application(request)
        if answer is None:
            return False
        if isinstance(answer, Stream):
            connection.sendall(_head(200, answer.content_type, (("Transfer-Encoding", "chunked"),)))
            for piece in answer.pieces:
                if piece:
                    connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
            return True
        length = ("Content-Length", str(len(answer.body)))
        head = _head(answer.status, answer.content_type, (length, *answer.headers))
        connection.sendall(head + (b"" if request.method == "HEAD" else answer.body))
        return request.headers.get("connection", "").lower() != "close"


def _head(status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read(reader: BinaryIO, connection: socket.socket) -> HttpRequest | None:
    """Return one request; None at the end of the connection. Raises: ValueError for anything that is not HTTP."""
    line = reader.readline(_LINE)
    if not line.strip():
        return None
    method, target, _version = line.decode("latin-1").split()
    headers: dict[str, str] = {}
    for _ in range(_HEADERS):
        line = reader.readline(_LINE)
        if line in (b"\r\n", b"\n"):
            break
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise ValueError("header without a colon")
        headers[name.strip().lower()] = value.strip()
    else:
        raise ValueError("too many headers")
    if headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = reader.read(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return HttpRequest(method, unquote(parts.path), query, headers, body, lambda: _is_gone(connection))


def _is_gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
