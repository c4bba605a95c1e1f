"""Watching: the event stream of one watch request.

In: the store, the client's selection and the resourceVersion to start from. Out: lines of JSON, one event each: ADDED,
MODIFIED, DELETED, BOOKMARK, ERROR. Source: Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dra_driver.embedded.api.kinds import ApiKind
from dra_driver.embedded.api.selection import ObjectSelection
from dra_driver.embedded.api.store import Event, Store
from dra_driver.embedded.api_rules.refusals import ApiRefusal, expired
from dra_driver.model.wire import Wire

_CLIENT_CHECK_S = 2.0  # seconds between two checks whether the client of a silent watch is still connected


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What the client asked for. If `start` is None, the current objects come first, as ADDED events."""

    kind: ApiKind
    selection: ObjectSelection
    start: int | None
    wants_bookmarks: bool
    wants_initial_mark: bool
    timeout_s: float


class Watchers:
    """All open watches. They can be ended together, silently or because their history has expired."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epoch = 0
        self._is_expired = False
        self._lock = threading.Lock()
        self.open = 0
        self.bookmark_every_s = 60.0

    def end_all(self, *, is_expired: bool = False) -> None:
        """End every open watch: silently, or with an ERROR event of code 410 if `is_expired`."""
        with self._store.changed:
            self._epoch += 1
            self._is_expired = is_expired
            self._store.changed.notify_all()

    def stream(self, request: WatchRequest, is_gone: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the event stream in pieces of whole lines."""
        with self._lock:
            self.open += 1
        try:
            yield from self._events(request, is_gone)
        finally:
            with self._lock:
                self.open -= 1

    def _events(self, request: WatchRequest, is_gone: Callable[[], bool]) -> Iterator[bytes]:
        epoch = self._epoch
        deadline = time.monotonic() + request.timeout_s
        cursor = request.start
        if cursor is None:
            cursor, present = self._present(request)
            yield present
            if request.wants_initial_mark:
                yield _bookmark(request.kind, cursor, {"k8s.io/initial-events-end": "true"})
        next_bookmark = time.monotonic() + self.bookmark_every_s
        while not is_gone():
            wake = min(deadline, next_bookmark) if request.wants_bookmarks else deadline
            try:
                events, seen, is_over = self._wait(request.kind, cursor, epoch, wake)
            except ApiRefusal as gone:
                yield _line("ERROR", json.dumps(gone.wire()).encode())
                return
            cursor = max(seen, cursor)
            if events:
                yield b"".join(_selected(event, request.selection) for event in events)
            if is_over:
                if self._is_expired:
                    yield _line("ERROR", json.dumps(expired(cursor, seen).wire()).encode())
                return
            now = time.monotonic()
            if request.wants_bookmarks and (now >= next_bookmark or now >= deadline):
                yield _bookmark(request.kind, cursor)
                next_bookmark = now + self.bookmark_every_s
            if now >= deadline:
                return

    def _present(self, request: WatchRequest) -> tuple[int, bytes]:
        """Return the newest revision, and an event for every object that there is at it."""
        with self._store.lock:
            revision = self._store.revision
            present = [s for s in self._store.all(request.kind) if request.selection.matches(s.wire)]
        return revision, b"".join(_line("ADDED", s.encoded) for s in present)

    def _wait(self, kind: ApiKind, cursor: int, epoch: int, wake: float) -> tuple[list[Event], int, bool]:
        """Return the events after a revision, the newest revision, and whether all watches were ended.

        If there are no events and no end yet, wait for them until `wake`, at most `_CLIENT_CHECK_S` seconds.
        """
        store = self._store
        with store.changed:
            events = store.events_after(kind, cursor)
            if not events and self._epoch == epoch:
                store.changed.wait(max(0.0, min(_CLIENT_CHECK_S, wake - time.monotonic())))
                events = store.events_after(kind, cursor)
            return events, store.revision, self._epoch != epoch


def _line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), encoded)


def _bookmark(kind: ApiKind, revision: int, annotations: Wire | None = None) -> bytes:
    metadata: Wire = {"resourceVersion": str(revision), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    return _line(
        "BOOKMARK", json.dumps({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}).encode()
    )


def _selected(event: Event, selection: ObjectSelection) -> bytes:
    """Return the event as this watch sees it: an object that leaves the selection appears as deleted."""
    was = event.old is not None and selection.matches(event.old.wire)
    is_now = event.type != "DELETED" and selection.matches(event.new.wire)
    if was and is_now:
        return _line("MODIFIED", event.new.encoded)
    if is_now:
        return _line("ADDED", event.new.encoded)
    return _line("DELETED", event.new.encoded) if was else b""
