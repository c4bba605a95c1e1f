"""Watch: list, then follow every change, through restarts, silences and forgotten history.

In: a collection's path and a field selector. Out: events, in the order of the server. A list comes at the start and
whenever the server no longer knows the history since the last event: one `Listed` for each page; from the first to the
last, these pages replace everything that was known. It keeps no objects.

A stream that ends is resumed from the last resourceVersion (bookmarks keep that recent). The server is asked to end
each stream after 4 to 9 minutes; one that stays silent for longer than that is dead, and is replaced.

Source: Kubernetes API concepts, "Efficient detection of changes", "410 Gone responses", "Watch bookmarks".
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.machine import Backoff
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import Wire
from dra_driver.kube import answers
from dra_driver.kube.answers import Changed, Connected, Deleted, Event, Listed, read_line
from dra_driver.kube.api import REQUEST_SECONDS, KubeApi
from dra_driver.kube.connections import LineStream

# Read a list of the API server one page after the other, so that it is never in memory as a whole.

LIMIT = 500
SECONDS = 30.0  # the time limit for one page
PATIENCE_SECONDS = 120.0
_MAX_OBJECTS = 5_000_000
_MAX_PAGES = 100_000
_MAX_EXPIRIES = 3  # after so many in a row, without a page between them, the server makes no progress
_BUSY = 429
_TOO_LARGE = "api.answer-too-large"


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a list. If `is_first`, earlier pages are void: the list has started over.

    `resource_version` is that of the first page: a watch from there misses nothing.
    """

    objects: tuple[Wire, ...]
    resource_version: str
    is_first: bool
    is_last: bool


class Listing:
    """One list. `next_page` may be called again after an ApiError; it continues where it was."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        *,
        field_selector: str = "",
        label_selector: str = "",
        limit: int = LIMIT,
        timeout_s: float = SECONDS,
        max_objects: int = _MAX_OBJECTS,
    ) -> None:
        self._api, self._path, self._timeout_s = api, path, timeout_s
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selector = {name: text for name, text in selectors.items() if text}
        self._limit, self._max_objects = limit, max_objects
        self._token = self._version = ""
        self._pages = self._objects = self._expiries = 0
        self.is_done = False

    @property
    def has_begun(self) -> bool:
        """Whether a page has been read."""
        return self._pages > 0

    def next_page(self) -> Page:
        """Read the next page. Raises: ApiError."""
        while True:
            try:
                return self._page(self._request())
            except ApiError as err:
                if err.code == _TOO_LARGE and self._limit > 1:
                    self._limit = max(1, self._limit // 2)
                elif err.status == 410 and self._token:
                    self._expired(err)
                else:
                    raise

    def _request(self) -> Wire:
        query = {**self._selector, "limit": str(self._limit)}
        if self._token:
            query["continue"] = self._token
        return self._api.request("GET", self._path, query=query, timeout_s=self._timeout_s)

    def _expired(self, err: ApiError) -> None:
        """Continue with the token that came with the refusal; without one, start over. Raises: ApiError."""
        self._expiries += 1
        if self._expiries > _MAX_EXPIRIES:
            what = f"GET {self._path}: the list keeps expiring while it is read"
            raise ApiError("gone", what, status=410, retry=Retry.LATER) from err
        self._token = err.continue_token
        if not self._token:
            self._version, self._pages, self._objects = "", 0, 0

    def _page(self, answer: Wire) -> Page:
        metadata, objects = answer.get("metadata"), answer.get("items")
        objects = [] if objects is None else objects
        if not isinstance(metadata, dict) or not isinstance(objects, list):
            raise self._fault("the answer is not a list of objects")
        version, token = metadata.get("resourceVersion") or "", metadata.get("continue") or ""
        if not (isinstance(version, str) and version and isinstance(token, str)):
            raise self._fault("the list has no resourceVersion, or a continue token that is not a string")
        if not all(isinstance(wire, dict) and isinstance(wire.get("metadata"), dict) for wire in objects):
            raise self._fault("an item of the list is not an object with metadata")
        self._pages, self._objects, self._expiries = self._pages + 1, self._objects + len(objects), 0
        if self._objects > self._max_objects or self._pages > _MAX_PAGES:
            raise self._fault(f"the list has more than {self._max_objects} objects or {_MAX_PAGES} pages")
        self._version, self._token, self.is_done = self._version or version, token, not token
        return Page(tuple(objects), self._version, is_first=self._pages == 1, is_last=self.is_done)

    def _fault(self, what: str) -> ApiError:
        return ApiError("bad-answer", f"GET {self._path}: {what}", retry=Retry.NOW)


def pages(
    api: KubeApi,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    limit: int = LIMIT,
    patience_s: float = PATIENCE_SECONDS,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Page]:
    """Yield the pages of a list, waiting while the server is busy.

    Raises: ApiError once the waiting would exceed `patience_s` seconds, or at once if waiting would not help.
    """
    listing = Listing(api, path, field_selector=field_selector, label_selector=label_selector, limit=limit)
    backoff, left = Backoff(base_s=0.2, max_s=10.0), patience_s
    while not listing.is_done:
        try:
            page = listing.next_page()
        except ApiError as err:
            delay = backoff.next_s(least_s=err.retry_after_s)
            left -= delay
            # Waiting is worthwhile if the server is busy or failed half-way, but not if it can't be reached at all.
            is_busy = err.status == _BUSY or err.retry_after_s > 0 or listing.has_begun
            if err.retry is not Retry.NOW or not is_busy or left <= 0:
                raise
            wait(delay)
            continue
        backoff.reset()
        yield page
        del page  # free this page before the next one is read


def objects(
    api: KubeApi,
    path: str,
    *,
    field_selector: str = "",
    label_selector: str = "",
    limit: int = LIMIT,
    patience_s: float = PATIENCE_SECONDS,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Wire]:
    """Return an iterator over all objects, which holds one page at a time.

    Raises: ApiError; also for a list that had to start over, since objects would be yielded twice.
    """
    began = False
    read = pages(
        api,
        path,
        field_selector=field_selector,
        label_selector=label_selector,
        limit=limit,
        patience_s=patience_s,
        wait=wait,
    )
    for page in read:
        if page.is_first and began:
            raise ApiError("gone", f"GET {path}: the list expired while it was read", status=410, retry=Retry.NOW)
        began = True
        yield from page.objects
        del page


log = logging.getLogger(__name__)

LIFETIME_SECONDS = (240.0, 540.0)
SILENCE_SECONDS = 30.0  # how long a stream may stay silent after the time at which the server should have ended it
RETRY_MAX_SECONDS = 10.0  # the longest delay between two tries, however long the server has been away
_CHANGES = ("ADDED", "MODIFIED", "DELETED")
_TOKEN_REFUSED = (400, 410)  # how the server answers a continue token that it does not accept any more
_EARLY_SECONDS = 5.0  # a stream that ends this long before its lifetime is over was not ended by the server's timeout
_SETTLED_SECONDS = 5.0  # a stream that lasted this long was not a failure


class _HistoryGoneError(Exception):
    """The server no longer has the history since the last event."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How a watch measures and spends time.

    A stream that is still open `silence_s` seconds after its lifetime is given up. `wait` sleeps for some seconds; None
    sleeps until the watch is stopped at the latest.
    """

    silence_s: float = SILENCE_SECONDS
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    wait: Callable[[float], object] | None = None


WATCH_TIMES = WatchTimes()


class Watch:
    """One list and watch. `events` is for one thread; `stop` may be called from any thread and returns at once.

    `check` raises ApiError for an object that does not have the shape of its kind, which interrupts the watch as any
    other fault does.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        *,
        field_selector: str = "",
        page_size: int = LIMIT,
        check: Callable[[Wire], None] = lambda _wire: None,
        backoff: Backoff | None = None,
        times: WatchTimes = WATCH_TIMES,
    ) -> None:
        self._api, self._path, self._times = api, path, times
        self._field_selector, self._page_size, self._check = field_selector, page_size, check
        self._listing: Listing | None = None
        self._selector = {"fieldSelector": field_selector} if field_selector else {}
        self._backoff = backoff or Backoff(base_s=0.2, max_s=RETRY_MAX_SECONDS)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._stream: LineStream | None = None
        self._version = ""
        self._is_renewal = False
        self._unusable: ApiError | None = None
        self.fault: ApiError | None = None  # why there are no events at the moment

    def events(self) -> Iterator[Event]:
        """Yield events until `stop`. A failing server raises no error here: the watch waits and tries again."""
        while not self._stopping.is_set():
            opened_at = None
            try:
                if not self._version:
                    yield from self._list()
                opened_at = self._times.clock()
                yield from self._follow()
                fault = None
            except _HistoryGoneError:
                self._version, fault = "", None
            except ApiError as err:
                fault = err
            if self._stopping.is_set():
                return
            self._pause(fault, opened_at)

    def start_over(self, fault: ApiError) -> None:
        """List again after a pause, because the last event can't be used; for the thread that reads `events`."""
        self._unusable = fault

    def _check_usable(self) -> None:
        """Raise the fault of the last event, if the reader found one; then everything is listed again."""
        fault, self._unusable = self._unusable, None
        if fault is not None:
            self._version, self._listing = "", None
            raise fault

    def stop(self) -> None:
        """End `events` now, whatever it is waiting for."""
        self._stopping.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def _pause(self, fault: ApiError | None, opened_at: float | None) -> None:
        """Wait before the next try: only briefly after a stream that lasted, otherwise longer each time."""
        if opened_at is not None and self._times.clock() - opened_at >= _SETTLED_SECONDS:
            self._backoff.reset()
        delay = self._backoff.next_s(least_s=fault.retry_after_s if fault else 0.0)
        self.fault = fault
        if fault is not None:
            level = logging.WARNING if self._backoff.attempts > 1 else logging.INFO
            keys = fields(path=self._path, code=fault.code, err=str(fault), attempt=self._backoff.attempts)
            log.log(level, "watch interrupted", extra=keys)
        wait = self._times.wait or self._stopping.wait
        wait(delay)

    def _list(self) -> Iterator[Listed]:
        """Yield all pages; a list that was interrupted continues where it was. Raises: ApiError."""
        if self._listing is None:
            self._listing = Listing(
                self._api,
                self._path,
                field_selector=self._field_selector,
                limit=self._page_size,
                timeout_s=REQUEST_SECONDS,
            )
        while not self._listing.is_done:
            page = self._next_page(self._listing)
            self.fault, version = None, page.resource_version
            yield Listed(page.objects, version, page.is_first, page.is_last)
            del page  # free this page before the next one is read
            self._check_usable()
            if self._stopping.is_set():
                return
        self._version, self._listing = version, None

    def _next_page(self, listing: Listing) -> Page:
        """Read a page; a list that can't be continued starts over at the next try. Raises: ApiError."""
        is_read = False
        try:
            page = listing.next_page()
            is_read = True
            for wire in page.objects:
                self._check(wire)
        except ApiError as err:
            if is_read or err.status in _TOKEN_REFUSED or err.retry is not Retry.NOW:
                self._listing = None
            raise
        return page

    def _follow(self) -> Iterator[Event]:
        """Yield the events of one stream until it ends."""
        lifetime_s = self._times.uniform(*LIFETIME_SECONDS)
        is_renewal, self._is_renewal = self._is_renewal, False
        over_at = self._times.clock() + lifetime_s - _EARLY_SECONDS
        stream = self._api.stream(self._path, query=self._query(lifetime_s), max_s=lifetime_s + self._times.silence_s)
        with self._lock:
            self._stream = stream
        try:
            if self._stopping.is_set():
                return
            stream.open()
            self.fault = None
            yield Connected(is_renewal)
            for line in stream.lines():
                event = self._decode(line)
                if event is not None:
                    yield event
                    self._check_usable()
                if self._stopping.is_set():
                    return
            self._is_renewal = self._times.clock() >= over_at
        except ApiError as err:
            if err.status == 410:
                raise _HistoryGoneError from err
            raise
        finally:
            with self._lock:
                self._stream = None
            stream.release()

    def _query(self, lifetime_s: float) -> dict[str, str]:
        return {
            **self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(lifetime_s)),
        }

    def _decode(self, line: bytes) -> Event | None:
        """Decode one line; a bookmark only moves the resourceVersion to resume from.

        Raises: _HistoryGoneError for an ERROR event or an invalid line, since a new list repairs either;
        ApiError if the server is only busy.
        """
        try:
            kind, wire = read_line(line)
        except ValueError as err:
            log.warning("watch event unreadable", extra=fields(path=self._path, err=str(err)[:200]))
            raise _HistoryGoneError from err
        if kind == "ERROR":
            keys = fields(path=self._path, status=wire.get("code", 0), reason=str(wire.get("message", ""))[:200])
            log.info("watch ended by an error", extra=keys)
            if wire.get("code") == _BUSY:
                raise answers.refusal(_BUSY, wire, "", method="GET", path=self._path)
            raise _HistoryGoneError
        if kind in _CHANGES:
            self._check(wire)
        self._version = wire["metadata"]["resourceVersion"]
        if kind in ("ADDED", "MODIFIED"):
            return Changed(wire)
        return Deleted(wire) if kind == "DELETED" else None
