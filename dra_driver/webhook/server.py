"""HTTPS server for the API server: starlette and uvicorn in a thread, with connections kept alive between reviews.

In: POST /configs, /selectors and /images with an AdmissionReview. Out: the review with its answer. It also serves
/healthz and /readyz for probes, and /metrics. Every step of a caller has a time limit, and all connections together
have a memory limit. An invalid request gets a 4xx; a fault of the webhook in /selectors never refuses anything.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping

from dra_driver.model.errors import NodeError
from dra_driver.model.wire import Wire
from dra_driver.serving.http_server import ConnectionLimits, HttpServer, configuration
from dra_driver.telemetry.probes import probe_pages
from dra_driver.webhook.callers import Callers
from dra_driver.webhook.handler import MAX_HEAD_BYTES, ReviewApplication, Reviewer

LIMITS = ConnectionLimits(
    connections=512,  # three API servers with 150 concurrent changes each; each connection costs some 60 KiB
    of_peer=512,
    handshake=5.0,
    first=90.0,
    head=5.0,
    body=5.0,
    answer=5.0,
    following=90.0,
)
_BACKLOG = 128


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
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        callers = callers or Callers()
        callers.prepare(context)
        pages = probe_pages(metrics=metrics, readiness=readiness)
        self._application = ReviewApplication(reviewers, unread or {}, pages, answered, callers)
        config = configuration(
            self._application,
            context,
            log_config=None,
            log_level="error",  # strangers may send what is not HTTP as often as they like
            timeout_keep_alive=int(limits.following),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._socket = _listen(address)
        self.port = int(self._socket.getsockname()[1])
        self._server = HttpServer(config, limits)
        run = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=run, name="webhook", daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.ask_to_end()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._application.close()


def _listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket, without a host on both IP versions: on IPv6-only clusters, probes come by IPv6 alone.

    Raises: NodeError("node.webhook-address").
    """
    is_for_both = not address[0] and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_for_both or ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=is_for_both)
    except OSError as error:
        raise NodeError("webhook-address", f"cannot listen on {address[0]}:{address[1]}: {error}") from error
