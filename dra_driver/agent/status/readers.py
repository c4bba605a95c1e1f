"""Metrics readers: decide which clients may scrape, if not every client may.

In: bearer tokens of requests. Out: None for a client that may scrape, otherwise a refusal. The API server decides. Its
verdicts are kept for a minute, and positive ones are used for ten minutes while it does not answer, because metrics are
needed most when a cluster is in trouble. One thread does the reviews: first those of tokens that were accepted before,
and only a few others a second, so that a client with unknown tokens can neither keep the API server busy nor lock out
other readers.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.agent.status.source import StatusSource
from dra_driver.kube.reviews import ReviewApi, may_read, owner_of
from dra_driver.model.errors import ApiError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.part_thread import PartThread
from dra_driver.telemetry.status_connection import PageResponse

log = logging.getLogger(__name__)

PATH = "/metrics"
FRESH_SECONDS = 60.0
STALE_SECONDS = 600.0
UNKNOWN_CALLERS_SECONDS = 0.2  # from one review of an unknown token to the next
_MAX_KEPT = 64  # verdicts, and requests that wait for one
_NO_TOKEN = PageResponse(401, b"a bearer token is needed\n")
_UNKNOWN = PageResponse(401, b"the API server does not know this token\n")
_FORBIDDEN = PageResponse(403, b"the owner of this token may not get /metrics (a ClusterRole with nonResourceURLs)\n")
_UNDECIDED = PageResponse(503, b"the API server did not answer whether this token may read metrics\n")
_BUSY = PageResponse(503, b"too many requests wait for a review\n")

Decided = Callable[[PageResponse | None], None]


@dataclass(frozen=True, slots=True)
class _ReaderVerdict:
    refusal: PageResponse | None
    at: float


class MetricsReaders:
    """Decides who may read /metrics."""

    def __init__(self, source: StatusSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._api: ReviewApi | None = None
        self._kept: OrderedDict[bytes, _ReaderVerdict] = OrderedDict()
        self._known: deque[tuple[str, Decided]] = deque()
        self._unknown: deque[tuple[str, Decided]] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = PartThread("metrics-readers", self._run)
        self._thread.start()

    def ask(self, token: str, decided: Decided) -> None:
        """Call `decided` with the verdict on a token: at once if it is known, otherwise later in the thread."""
        if not token:
            decided(_NO_TOKEN)
            return
        late: Decided | None = None
        with self._changed:
            kept = self._kept.get(_digest(token))
            if kept is None or self._clock() - kept.at >= FRESH_SECONDS:
                waiting = self._known if kept is not None and kept.refusal is None else self._unknown
                waiting.append((token, decided))
                late = waiting.popleft()[1] if len(waiting) > _MAX_KEPT else None
                kept = None
                self._changed.notify_all()
        if late is not None:
            late(_BUSY)
        if kept is not None:
            decided(kept.refusal)

    def stop(self) -> None:
        """End the thread without waiting for a review that has begun."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.release()

    def _run(self, thread: PartThread) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._known or self._unknown or self._is_stopping)
                if self._is_stopping:
                    return
                is_unknown = not self._known
                token, decided = (self._unknown if is_unknown else self._known).popleft()
            try:
                with thread.turn():
                    refusal = self._verdict(token)
            except Exception:
                log.exception("review of a reader of metrics failed")
                refusal = _UNDECIDED
            decided(refusal)
            if is_unknown:
                with self._changed:
                    self._changed.wait_for(lambda: self._known or self._is_stopping, UNKNOWN_CALLERS_SECONDS)

    def _verdict(self, token: str) -> PageResponse | None:
        digest, now = _digest(token), self._clock()
        kept = self._kept.get(digest)
        if kept is not None and now - kept.at < FRESH_SECONDS:  # another request waited for the same token
            return kept.refusal
        try:
            refusal = self._review(token)
        except ApiError as error:
            log.warning("reader of metrics not reviewed", extra=fields(code=error.code, err=str(error)))
            is_usable = kept is not None and kept.refusal is None and now - kept.at < STALE_SECONDS
            return None if is_usable else _UNDECIDED
        with self._changed:
            self._kept[digest] = _ReaderVerdict(refusal, now)
            self._kept.move_to_end(digest)
            while len(self._kept) > _MAX_KEPT:
                self._forget_one()
        return refusal

    def _review(self, token: str) -> PageResponse | None:
        if self._api is None:
            self._api = self._source.review_api()
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
