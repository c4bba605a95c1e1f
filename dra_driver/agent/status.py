"""Status page: /metrics for Prometheus, /healthz and /readyz for the kubelet's probes, on one small HTTP server."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

from dra_driver.model.errors import NodeError, UsageError
from dra_driver.telemetry.listening import HttpServer
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FAULT_SECONDS = 1.0  # before another connection is asked for when there was none to be had


def parse_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `:PORT` or `[v6]:PORT`. Raises: UsageError("usage.address")."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"--metrics-address={text!r} is not HOST:PORT", hint="for example 127.0.0.1:9400")
    return host.strip("[]"), int(port)


class StatusPage:
    """Serves what the two callables say at the moment of the request.

    `readiness` gives the reasons why the agent is not ready; empty means ready.
    """

    def __init__(self, address: str, *, metrics: Callable[[], bytes], readiness: Callable[[], tuple[str, ...]]) -> None:
        host, port = parse_address(address)
        try:
            self._server = HttpServer((host, port), _handler(metrics, readiness))
        except OSError as error:
            raise NodeError("metrics-address", f"cannot listen on --metrics-address={address}: {error}") from error
        self.port = int(self._server.server_address[1])
        self._stop = threading.Event()
        self._address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)

    def start(self) -> None:
        """Begin answering."""
        self._thread.start()
        log.info("status page open", extra=fields(address=self._address))

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._stop.set()
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        if self._thread.is_alive():
            self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        """Wait for connections in the kernel; the library's own loop looks twice a second whether it shall end."""
        while not self._stop.is_set():
            try:
                request, client = self._server.get_request()
            except OSError:  # ended, or short of something
                self._stop.wait(FAULT_SECONDS)
                continue
            try:
                self._server.process_request(request, client)
            except Exception:
                log.exception("request not served")
                self._server.shutdown_request(request)


def _handler(metrics: Callable[[], bytes], readiness: Callable[[], tuple[str, ...]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path == "/healthz":
                self._answer(200, b"ok\n")
            elif self.path == "/readyz":
                reasons = readiness()
                self._answer(503 if reasons else 200, ("\n".join(reasons) or "ok").encode() + b"\n")
            else:
                self._answer(404, b"try /metrics, /healthz or /readyz\n")

        def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep probes out of the log."""

    return Handler
