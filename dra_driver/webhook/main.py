"""Wire the webhook's certificates, fleet and validation to the server, and run it until it is asked to end."""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest

from dra_driver.claims.config.reading import validate
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials.loading import load_credentials
from dra_driver.model.errors import ApiError
from dra_driver.model.kubernetes import nearest_version
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.stop_request import StopRequest
from dra_driver.webhook.callers import Callers
from dra_driver.webhook.fleet import FleetWatch, PublishedFleet
from dra_driver.webhook.handler import Reviewer
from dra_driver.webhook.identity import CertificateFolder, CertificateSecret, CertificateSource, ServingIdentity
from dra_driver.webhook.images import ImageAdvisor
from dra_driver.webhook.linting import FleetLinter
from dra_driver.webhook.mps_claims import MpsAdvisor
from dra_driver.webhook.review import (
    Advisor,
    allow_unread,
    refuse_unread,
    review_configs,
    review_pods,
    review_selectors,
)
from dra_driver.webhook.server import ReviewServer

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
            readiness=self._unready,
            metrics=lambda: generate_latest(registry),
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
