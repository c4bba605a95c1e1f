"""Server: HTTPS for the API server, one thread a connection, kept alive between reviews.

In: POST /configs and /selectors with an AdmissionReview. Out: the review with its answer. Also /healthz and /readyz for
probes and /metrics. Garbage gets a 4xx and costs nothing; a fault of ours in /selectors never refuses anything.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from dra_driver.model.errors import InputError, NodeError
from dra_driver.model.wire import Wire
from dra_driver.telemetry.listening import HttpServer
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

MOST_BYTES = 8 << 20  # two objects of the largest size that etcd takes, with room
IDLE_SECONDS = 90.0
HANDSHAKE_SECONDS = 5.0
MOST_CONNECTIONS = 1024  # three API servers with 200 changes each under way come first
_JSON = "application/json"
Judge = Callable[[Any], Wire]


class ReviewServer:
    """Answers reviews. `judges` by path; `readiness` gives the reasons why it is not ready."""

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        *,
        judges: dict[str, Judge],
        readiness: Callable[[], tuple[str, ...]],
        metrics: Callable[[], bytes] = bytes,
        answered: Callable[[str, str], None] = lambda _path, _outcome: None,
    ) -> None:
        handler = _handler(judges, readiness, metrics, answered)
        try:
            self._server = _Server(address, handler, context)
        except OSError as error:
            raise NodeError("webhook-address", f"cannot listen on {address[0]}:{address[1]}: {error}") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin answering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(HttpServer):
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext
    ) -> None:
        self._context = context
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread; close it where there are too many: each costs memory."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's own thread: a client that does not, holds up nobody."""
        request.settimeout(HANDSHAKE_SECONDS)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Keep scans and broken connections out of the log."""
        log.debug("connection broken", exc_info=True)


def _handler(
    judges: dict[str, Judge],
    readiness: Callable[[], tuple[str, ...]],
    metrics: Callable[[], bytes],
    answered: Callable[[str, str], None],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_SECONDS
        wbufsize = -1  # one write for headers and body

        def do_POST(self) -> None:
            path = self.path.partition("?")[0]
            judge = judges.get(path)
            if judge is None:
                self._answer(404, b"no such webhook\n")
                self.close_connection = True
                return
            body = self._body()
            if body is None:
                answered(path, "bad-review")
                return
            try:
                reply = judge(json.loads(body))
            except (ValueError, RecursionError, InputError) as error:
                answered(path, "bad-review")
                self._answer(400, f"not an AdmissionReview: {error}\n".encode())
                return
            except Exception:
                log.exception("review failed", extra=fields(path=path))
                answered(path, "bug")
                self._answer(500, b"internal error\n")
                return
            answered(path, _outcome(reply))
            self._answer(200, json.dumps(reply, separators=(",", ":")).encode(), _JSON)

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200, b"ok\n")
            elif self.path == "/readyz":
                reasons = readiness()
                self._answer(503 if reasons else 200, ("\n".join(reasons) or "ok").encode() + b"\n")
            elif self.path == "/metrics":
                self._answer(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                self._answer(404, b"try /healthz, /readyz or /metrics\n")

        def _body(self) -> bytes | None:
            """Read the body; answers itself and gives None where there is none that can be read."""
            length = self.headers.get("Content-Length", "")
            kind = self.headers.get_content_type() if "Content-Type" in self.headers else _JSON
            if re.fullmatch("[0-9]+", length) is None:
                self._answer(411, b"Content-Length is needed\n")
            elif len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
                self._answer(413, b"too large\n")
            elif kind != _JSON:
                self._answer(415, f"{_JSON} is expected\n".encode())
            else:
                body = self.rfile.read(int(length))
                if len(body) == int(length):
                    return body
            self.close_connection = True
            return None

        def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
            self.send_response_only(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep reviews out of the log."""

    return Handler


def _outcome(reply: Wire) -> str:
    response = reply["response"]
    if not response["allowed"]:
        return "refused"
    return "warned" if response.get("warnings") else "allowed"
