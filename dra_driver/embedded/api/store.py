"""Store: the objects in memory, their versions and their history.

In: whole objects that have already been admitted. Out: the objects, and the events after a resourceVersion. One counter
numbers the writes of all kinds, as etcd's revision does. Stored objects are never changed in place. The store itself
checks no object.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from dra_driver.embedded.api.kinds import KINDS, ApiKind
from dra_driver.embedded.api_rules.refusals import expired
from dra_driver.model.wire import Wire

HISTORY = 20_000  # events kept for each kind before the older half is dropped


@dataclass(slots=True)
class Stored:
    """One version of one object; its JSON is encoded once, when it is first sent."""

    wire: Wire
    _encoded: bytes | None = field(default=None, repr=False)

    @property
    def encoded(self) -> bytes:
        """The object as JSON."""
        if self._encoded is None:
            self._encoded = json.dumps(self.wire, separators=(",", ":")).encode()
        return self._encoded

    @property
    def revision(self) -> int:
        """The resourceVersion as a number."""
        return int(self.wire["metadata"]["resourceVersion"])


@dataclass(frozen=True, slots=True)
class Event:
    """One write: the object before it and after it. For a deletion `new` is the last state."""

    revision: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    old: Stored | None
    new: Stored


Key = tuple[str, str]  # namespace ("" for a cluster-scoped object) and name


class Store:
    """The objects of all kinds. Writers hold `lock`; `changed` is notified after every write."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.revision = 1
        self._objects: dict[ApiKind, dict[Key, Stored]] = {kind: {} for kind in KINDS}
        self._history: dict[ApiKind, list[Event]] = {kind: [] for kind in KINDS}
        self._oldest: dict[ApiKind, int] = dict.fromkeys(KINDS, 0)

    def get(self, kind: ApiKind, key: Key) -> Stored | None:
        """Return the object; None if it does not exist."""
        return self._objects[kind].get(key)

    def all(self, kind: ApiKind) -> list[Stored]:
        """Return the objects of a kind in the order of keys, as etcd does."""
        with self.lock:
            return [stored for _, stored in sorted(self._objects[kind].items())]

    def oldest(self, kind: ApiKind) -> int:
        """Return the revision before which the history of a kind is forgotten."""
        return self._oldest[kind]

    def put(self, kind: ApiKind, key: Key, wire: Wire) -> Stored:
        """Store an object under the next revision. From now on the store owns it."""
        with self.lock:
            old = self._objects[kind].get(key)
            stored = self._next(wire)
            self._objects[kind][key] = stored
            self._record(kind, Event(self.revision, "MODIFIED" if old else "ADDED", old, stored))
            return stored

    def remove(self, kind: ApiKind, key: Key) -> Stored:
        """Remove an object; the event carries its last state with the revision of the deletion."""
        with self.lock:
            old = self._objects[kind].pop(key)
            last = self._next({**old.wire, "metadata": dict(old.wire["metadata"])})
            self._record(kind, Event(self.revision, "DELETED", old, last))
            return last

    def events_after(self, kind: ApiKind, revision: int) -> list[Event]:
        """Return the events of a kind after `revision`. Raises: ApiRefusal 410 if some of them have been dropped."""
        with self.lock:
            if revision < self._oldest[kind]:
                raise expired(revision, self._oldest[kind])
            history = self._history[kind]
            if not history or history[-1].revision <= revision:
                return []
            return history[bisect_right(history, revision, key=lambda e: e.revision) :]

    def compact(self) -> None:
        """Drop the history, so that a watch from any version before now is answered with 410."""
        with self.lock:
            self.revision += 1  # so that the version of the newest event is too old as well
            for kind in KINDS:
                self._history[kind].clear()
                self._oldest[kind] = self.revision

    def _next(self, wire: Wire) -> Stored:
        self.revision += 1
        wire["metadata"]["resourceVersion"] = str(self.revision)
        return Stored(wire)

    def _record(self, kind: ApiKind, event: Event) -> None:
        history = self._history[kind]
        history.append(event)
        if len(history) > HISTORY:
            self._oldest[kind] = history[HISTORY // 2 - 1].revision
            del history[: HISTORY // 2]
        self.changed.notify_all()
