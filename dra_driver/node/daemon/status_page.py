"""Metrics readers: decide which clients may scrape, if not every client may.

In: bearer tokens of requests. Out: None for a client that may scrape, otherwise a refusal. The API server decides. Its
verdicts are kept for a minute, and positive ones are used for ten minutes while it does not answer, because metrics are
needed most when a cluster is in trouble. Tokens that were accepted before are reviewed apart from all others; of these
only a few wait, and only a few a second are reviewed, so that a client with unknown tokens can neither keep the API
server busy nor lock out other readers.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError, NodeError
from dra_driver.base.machine import Stamp, stamp_of
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.telemetry.status_server import (
    QUICK_PAGES,
    Page,
    PageAccess,
    PageResponse,
    Port,
    SocketEncryption,
    probe_pages,
)
from dra_driver.kube.paths import ReviewApi, may_read, owner_of
from dra_driver.node.daemon.options import StatusOptions, parse_address

# The source of the status page: the interface by which an agent supplies it.


class StatusSource(Protocol):
    """What the page shows, computed for each request. Any thread may call any method."""

    def metrics(self) -> bytes:
        """Return the text that Prometheus reads."""

    def unready(self) -> tuple[str, ...]:
        """Return the reasons why the agent is not ready; none if it is."""

    def review_api(self) -> ReviewApi:
        """Open the client with which readers of metrics are reviewed. Called once, when the first has to be reviewed.

        Raises: DriverError for unusable credentials.
        """


log = logging.getLogger(__name__)

PATH = "/metrics"
FRESH_SECONDS = 60.0
STALE_SECONDS = 600.0
UNKNOWN_CALLERS_SECONDS = 0.2  # from one review of an unknown token to the next
MAX_UNKNOWN_CALLERS = 8  # that wait for a review
_MAX_KEPT = 64  # verdicts
_NO_TOKEN = PageResponse(401, b"a bearer token is needed\n")
_UNKNOWN = PageResponse(401, b"the API server does not know this token\n")
_FORBIDDEN = PageResponse(403, b"the owner of this token may not get /metrics (a ClusterRole with nonResourceURLs)\n")
_UNDECIDED = PageResponse(503, b"the API server did not answer whether this token may read metrics\n")
_BUSY = PageResponse(503, b"too many requests wait for a review\n")


@dataclass(frozen=True, slots=True)
class _ReaderVerdict:
    refusal: PageResponse | None
    at: float


class MetricsReaders:
    """Decides who may read /metrics. Any thread may ask."""

    def __init__(self, source: StatusSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._api: ReviewApi | None = None
        self._kept: OrderedDict[bytes, _ReaderVerdict] = OrderedDict()
        self._mutex = threading.Lock()  # guards what is kept
        self._room = threading.BoundedSemaphore(MAX_UNKNOWN_CALLERS)
        self._known, self._unknown = threading.Lock(), threading.Lock()  # of each, one is reviewed at a time
        self._next_unknown_at = float("-inf")

    def refusal(self, token: str) -> PageResponse | None:
        """Return the answer to a client that may not scrape, or None: at once if its token's verdict is fresh."""
        if not token:
            return _NO_TOKEN
        kept = self._kept.get(_digest(token))
        if kept is not None and self._clock() - kept.at < FRESH_SECONDS:
            return kept.refusal
        if kept is not None and kept.refusal is None:
            with self._known:
                return self._verdict(token)
        if not self._room.acquire(blocking=False):
            return _BUSY
        try:
            with self._unknown:
                time.sleep(max(0.0, self._next_unknown_at - time.monotonic()))
                refusal = self._verdict(token)
                self._next_unknown_at = time.monotonic() + UNKNOWN_CALLERS_SECONDS
                return refusal
        finally:
            self._room.release()

    def _verdict(self, token: str) -> PageResponse | None:
        digest, now = _digest(token), self._clock()
        kept = self._kept.get(digest)
        if kept is not None and now - kept.at < FRESH_SECONDS:  # another request waited for the same token
            return kept.refusal
        try:
            refusal = self._review(token)
        except DriverError as error:
            log.warning("reader of metrics not reviewed", extra=fields(code=error.code, err=str(error)))
            is_usable = kept is not None and kept.refusal is None and now - kept.at < STALE_SECONDS
            return None if is_usable else _UNDECIDED
        with self._mutex:
            self._kept[digest] = _ReaderVerdict(refusal, now)
            self._kept.move_to_end(digest)
            while len(self._kept) > _MAX_KEPT:
                self._forget_one()
        return refusal

    def _review(self, token: str) -> PageResponse | None:
        with self._mutex:
            self._api = self._api or self._source.review_api()
        user = owner_of(token, self._api)
        if user is None:
            return _UNKNOWN
        return None if may_read(user, PATH, self._api) else _FORBIDDEN

    def _forget_one(self) -> None:
        """Forget the oldest refusal, or else the oldest verdict, so that unknown clients never displace readers."""
        refused = (digest for digest, verdict in self._kept.items() if verdict.refusal is not None)
        del self._kept[next(refused, next(iter(self._kept)))]


def _digest(token: str) -> bytes:
    import hashlib

    return hashlib.sha256(token.encode()).digest()


# Status pages: /metrics for Prometheus, /healthz and /readyz for the kubelet's probes, on one port or on two.


class StatusPage:
    """Serves the answers of a source.

    Probes that have their own address are not answered on the port of the metrics. They are neither encrypted nor
    reviewed, because the kubelet has no token and they show no figures.
    """

    def __init__(self, options: StatusOptions, source: StatusSource) -> None:
        pages = dict(probe_pages(metrics=source.metrics, readiness=source.unready))
        self._ports: list[Port] = []
        self.port = self.probe_port = 0
        if options.probe_address:
            ready = {"/readyz": pages.pop("/readyz")}
            self._ports.append(_listening("--probe-address", options.probe_address, ready, QUICK_PAGES))
            self.probe_port = self._ports[0].number
        if options.metrics_address:
            quick = {} if options.probe_address else QUICK_PAGES
            self._ports.append(
                _listening(
                    "--metrics-address",
                    options.metrics_address,
                    pages,
                    quick,
                    encryption=_encryption(options),
                    access=_access(options, source),
                )
            )
            self.port = self._ports[-1].number

    def start(self) -> None:
        """Begin answering."""
        for port in self._ports:
            port.start()
        for port in self._ports:
            log.info("status page open", extra=fields(address=port.address))

    def stop(self) -> None:
        """Stop answering and free the ports."""
        for port in self._ports:
            port.stop()


def _listening(
    flag: str,
    address: str,
    pages: Mapping[str, Page],
    quick: Mapping[str, PageResponse],
    *,
    encryption: SocketEncryption | None = None,
    access: PageAccess | None = None,
) -> Port:
    """Return a port that is bound. Raises: UsageError; NodeError("node.metrics-address")."""
    try:
        return Port(parse_address(address, flag), pages, quick=quick, encryption=encryption, access=access)
    except OSError as error:
        raise NodeError("metrics-address", f"cannot listen on {flag}={address}: {error}") from error


def _encryption(options: StatusOptions) -> SocketEncryption | None:
    if options.certificate is None:
        return None
    from dra_driver.node.daemon.status_page import MountedCertificate

    return MountedCertificate(options.certificate)


def _access(options: StatusOptions, source: StatusSource) -> PageAccess | None:
    if not options.has_known_readers:
        return None

    return MetricsReaders(source)


# TLS of the metrics port.


log = logging.getLogger(__name__)

CHECK_SECONDS = 10.0  # how often the files are checked


class MountedCertificate:
    """TLS with the certificate in a folder that is renewed, such as a mounted Secret: `tls.crt` and `tls.key`.

    A new certificate is used for new connections within seconds; one that can't be used is logged, and the last good
    one stays in use. While there is none, no connection is accepted: nothing is ever sent unencrypted instead. It is
    not thread-safe.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = (folder / "tls.crt", folder / "tls.key"), clock
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[Stamp | None, ...] | None = None
        self._checked_at = float("-inf")

    def secure(self, sock: socket.socket) -> socket.socket:
        """Return a socket that encrypts; the handshake is part of its first read.

        Raises: OSError if there is no certificate, or the client is gone.
        """
        if self._clock() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._clock()
            self._check()
        if self._context is None:
            raise ConnectionAbortedError("no certificate")
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _check(self) -> None:
        stamps = tuple(stamp_of(file) for file in self._files)
        if stamps == self._stamps and self._context is not None:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # otherwise a send might have to wait for data from the client
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as error:
            log.warning(
                "certificate of the metrics port can't be used",
                extra=fields(file=str(self._files[0]), err=str(error)),
            )
            return
        self._context, self._stamps = context, stamps
        log.info("certificate of the metrics port in use", extra=fields(file=str(self._files[0])))


def _no_password() -> str:
    """Return an empty password, so that an encrypted key is an error instead of a prompt on the terminal."""
    return ""
