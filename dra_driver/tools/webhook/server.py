"""Wire the webhook's certificates, fleet and validation to the server, and run it until it is asked to end."""

from __future__ import annotations

import ctypes
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest

from dra_driver.base.errors import ApiError, NodeError
from dra_driver.base.telemetry.logs import StopRequest, fields
from dra_driver.base.telemetry.status_server import Page, probe_pages
from dra_driver.base.versions import nearest_version
from dra_driver.base.wire import Wire
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.node.claims.config import validate
from dra_driver.tools.http_server import ConnectionLimits, HttpServer, configuration
from dra_driver.tools.webhook.certificates import (
    CertificateFolder,
    CertificateSecret,
    CertificateSource,
    ServingIdentity,
)
from dra_driver.tools.webhook.fleet import Callers, FleetWatch, PublishedFleet
from dra_driver.tools.webhook.handler import MAX_HEAD_BYTES, ReviewApplication, Reviewer
from dra_driver.tools.webhook.linting import FleetLinter, ImageAdvisor, MpsAdvisor
from dra_driver.tools.webhook.review import (
    Advisor,
    allow_unread,
    refuse_unread,
    review_configs,
    review_pods,
    review_selectors,
)

# HTTPS server for the API server: starlette and uvicorn in a thread, with connections kept alive between reviews.

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
    values to be decoded; `pages` makes what probes and metrics are answered with, by path.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        *,
        reviewers: Mapping[str, Reviewer],
        pages: Mapping[str, Page],
        unread: Mapping[str, Callable[[str], Wire]] | None = None,
        answered: Callable[[str, str], None] = lambda _path, _outcome: None,
        callers: Callers | None = None,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        callers = callers or Callers()
        callers.prepare(context)
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


log = logging.getLogger(__name__)

_M_ARENA_MAX = -8  # Source: malloc.h of glibc
# How long one thread may compute while others wait: a review of a config must not wait for one of selectors.
_SWITCH_SECONDS = 0.001
UNREAD = {"/configs": refuse_unread, "/selectors": allow_unread, "/images": allow_unread}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the flags. If `tls_dir` is set, someone else makes the certificates."""

    address: tuple[str, int]
    drivers: tuple[str, ...]
    kubeconfig: str | None
    tls_dir: Path | None
    namespace: str
    service: str
    secret: str
    configuration: str
    client_authorities: Path | None = None
    client_names: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the DNS names by which the API server calls the webhook."""
        return (f"{self.service}.{self.namespace}.svc", f"{self.service}.{self.namespace}.svc.cluster.local")


class Webhook:
    """The running webhook."""

    def __init__(self, settings: Settings) -> None:
        api = KubeApi(load_credentials(settings.kubeconfig))
        self._fleet = PublishedFleet(settings.drivers)
        self._watch = FleetWatch(api, self._fleet)
        linter = FleetLinter(self._fleet, settings.drivers, kubernetes=_engine_version(api))
        self.identity = ServingIdentity(_source(api, settings))
        advisors = ImageAdvisor(self._fleet, settings.drivers), MpsAdvisor(api, self._fleet, settings.drivers)
        registry = CollectorRegistry()
        reviews = Counter(
            "dra_driver_webhook_reviews", "Reviews by path and outcome", ["path", "outcome"], registry=registry
        )
        self.server = ReviewServer(
            settings.address,
            self.identity.context,
            reviewers=reviewers(settings.drivers, linter, *advisors),
            unread=UNREAD,
            pages=probe_pages(metrics=lambda: generate_latest(registry), readiness=self._unready),
            answered=lambda path, outcome: reviews.labels(path, outcome).inc(),
            callers=Callers(settings.client_authorities, settings.client_names),
        )

    def start(self) -> None:
        """Start all threads and listen."""
        self.identity.start()
        self._watch.start()
        self.server.start()
        log.info("webhook serving", extra=fields(address=f":{self.server.port}"))

    def stop(self) -> None:
        """Stop listening and end all threads."""
        self.server.stop()
        self._watch.stop()
        self.identity.stop()

    def _unready(self) -> tuple[str, ...]:
        return (self.identity.fault,) if self.identity.fault else ()


def serve(settings: Settings) -> None:
    """Serve until SIGTERM. Raises: DriverError."""
    stop = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    tune_process()
    webhook = Webhook(settings)
    webhook.start()
    stop.wait()
    webhook.stop()
    log.info("stopped")


def tune_process() -> None:
    """Set the process up for many threads.

    All threads share two heaps, because each heap keeps the memory that was freed in it; and their turns are short.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
    sys.setswitchinterval(_SWITCH_SECONDS)


def reviewers(drivers: tuple[str, ...], linter: FleetLinter, *advisors: Advisor) -> dict[str, Reviewer]:
    """Return the functions that review, by path."""
    validate({})  # loads the models now, so that the first review does not wait for them
    return {
        "/configs": lambda review, _deadline: review_configs(review, drivers),
        "/selectors": lambda review, deadline: review_selectors(review, linter, deadline),
        "/images": lambda review, _deadline: review_pods(review, *advisors),
    }


def _source(api: KubeApi, settings: Settings) -> CertificateSource:
    if settings.tls_dir is not None:
        return CertificateFolder(settings.tls_dir)
    return CertificateSecret(
        api,
        namespace=settings.namespace,
        secret=settings.secret,
        configuration=settings.configuration,
        names=settings.names,
    )


def _engine_version(api: KubeApi) -> str:
    """Return the version whose rules are nearest to the server's; the oldest if the server does not answer."""
    try:
        minor = api.server_version().minor
    except ApiError as error:
        log.warning("version of the API server unknown", extra=fields(code=error.code, err=str(error)))
        minor = 0
    return nearest_version(minor)
