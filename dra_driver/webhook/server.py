"""HTTPS server for the API server, with one thread per connection, kept alive between reviews.

In: POST /configs, /selectors and /images with an AdmissionReview. Out: the review with its answer. It also serves
/healthz and /readyz for probes, and /metrics. Every step of a caller has a time limit, and all connections together
have a memory limit. An invalid request gets a 4xx; a fault of the webhook in /selectors never refuses anything.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from dra_driver.model.errors import NodeError
from dra_driver.model.wire import Wire
from dra_driver.telemetry.listening import HttpServer
from dra_driver.telemetry.probes import probe_pages
from dra_driver.webhook.callers import Callers
from dra_driver.webhook.connections import ClientConnections
from dra_driver.webhook.handler import HANDSHAKE_SECONDS, HandlerContext, handler_of
from dra_driver.webhook.load_limits import LoadLimits
from dra_driver.webhook.review_deadline import ReviewDeadline

log = logging.getLogger(__name__)

Reviewer = Callable[[Any, ReviewDeadline], Wire]


class ReviewServer:
    """The server of reviews.

    `reviewers` holds the functions by path; `unread` holds those that answer, given its UID, a review with too many
    values to be decoded; `readiness` returns the reasons why the webhook is not ready.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        *,
        reviewers: Mapping[str, Reviewer],
        readiness: Callable[[], tuple[str, ...]],
        unread: Mapping[str, Callable[[str], Wire]] | None = None,
        metrics: Callable[[], bytes] = bytes,
        answered: Callable[[str, str], None] = lambda _path, _outcome: None,
        callers: Callers | None = None,
    ) -> None:
        callers = callers or Callers()
        callers.prepare(context)
        pages = probe_pages(metrics=metrics, readiness=readiness)
        answering = HandlerContext(
            reviewers, unread or {}, pages, answered, callers.refusal, LoadLimits(tuple(reviewers))
        )
        self.connections = ClientConnections()
        try:
            self._server = _WebhookServer(address, handler_of(answering), context, self.connections)
        except OSError as error:
            raise NodeError("webhook-address", f"cannot listen on {address[0]}:{address[1]}: {error}") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="webhook", daemon=True)

    def start(self) -> None:
        """Start answering."""
        self.connections.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self.connections.stop()


class _WebhookServer(HttpServer):
    request_queue_size = 128
    block_on_close = False  # with True, the base class would remember every thread

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        context: ssl.SSLContext,
        connections: ClientConnections,
    ) -> None:
        self._context, self._connections = context, connections
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own; close it if no thread can be started."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the connection's own thread, so that a slow client does not block the others."""
        request.settimeout(HANDSHAKE_SECONDS)
        with contextlib.suppress(OSError):
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            connection = self._connections.enter(secured, HANDSHAKE_SECONDS)
            if connection is None:
                return
            try:
                secured.do_handshake()
                self.RequestHandlerClass((secured, connection), client_address, self)  # type: ignore[arg-type]
            finally:
                self._connections.leave(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log port scans and broken connections only at the level of debugging."""
        log.debug("connection broken", exc_info=True)
