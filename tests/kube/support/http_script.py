"""A small HTTP server that does what a healthy API server never does: it stays silent, or sends garbage."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Exchange(BaseHTTPRequestHandler):
    """One request, with ways to answer it."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(encoded)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(encoded)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_piece(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.flush()

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _any(self) -> None:
        self.server.seen.append(self)
        self.server.script(self)

    do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


class ScriptedServer(ThreadingHTTPServer):
    """Serves on the loopback interface; `script` answers each exchange. `stopping` is set when the test is over."""

    daemon_threads = True
    host = "127.0.0.1"

    def __init__(self, script: Callable[[Exchange], None], tls: ssl.SSLContext | None = None) -> None:
        super().__init__((self.host, 0), Exchange)
        self.script, self.seen, self.stopping = script, [], threading.Event()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_address[1]}"
        self.tls = tls

    def get_request(self):
        connection, address = super().get_request()
        if self.tls is not None:
            connection = self.tls.wrap_socket(connection, server_side=True)
        return connection, address

    def handle_error(self, *_: object) -> None:
        pass

    def __enter__(self) -> ScriptedServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()
