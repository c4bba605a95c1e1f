"""Read a list of the API server one page after the other, so that it is never in memory as a whole.

In: a collection's path and selectors. Out: pages of wire objects. No request has a resourceVersion: with "0" the server
would ignore the limit and send everything at once. A continue token that has expired (410) comes with another one in
`metadata.continue`, which continues after the last object; the rest of the list is then newer than its beginning, so a
watch starts at the resourceVersion of the first page. A page that is too large is requested again with half the limit.

Source: Kubernetes API concepts, "Retrieving large results sets in chunks", "410 Gone responses".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dra_driver.kube.api import KubeApi
from dra_driver.kube.backoff import Backoff
from dra_driver.model.errors import ApiError, Retry
from dra_driver.model.wire import Wire

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
        if not all(isinstance(one, dict) and isinstance(one.get("metadata"), dict) for one in objects):
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
