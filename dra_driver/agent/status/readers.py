"""Metrics readers: decide which clients may scrape, if not every client may.

In: bearer tokens of requests. Out: None for a client that may scrape, otherwise a refusal. The API server decides. Its
verdicts are kept for a minute, and positive ones are used for ten minutes while it does not answer, because metrics are
needed most when a cluster is in trouble. Tokens that were accepted before are reviewed apart from all others; of these
only a few wait, and only a few a second are reviewed, so that a client with unknown tokens can neither keep the API
server busy nor lock out other readers.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.agent.status.source import StatusSource
from dra_driver.kube.reviews import ReviewApi, may_read, owner_of
from dra_driver.model.errors import DriverError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.probes import PageResponse

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
    return hashlib.sha256(token.encode()).digest()
