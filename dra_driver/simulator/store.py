"""Watching: the event stream of one watch request.

In: the store, the client's selection and the resourceVersion to start from. Out: lines of JSON, one event each: ADDED,
MODIFIED, DELETED, BOOKMARK, ERROR. Source: Kubernetes API concepts, "Efficient detection of changes".
"""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from dra_driver.base.wire import Wire
from dra_driver.simulator.shapes import ApiRefusal, bad_request, expired, unknown_path

# Kinds: the objects that the embedded API serves, and their paths.


@dataclass(frozen=True, slots=True)
class ApiKind:
    """One served kind. `selectable` lists the field selectors besides metadata.name and metadata.namespace."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool
    has_status: bool = False
    has_generation: bool = False
    selectable: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """The group and version, such as `resource.k8s.io/v1`; `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name that messages use, such as `resourceslices.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the URL path of one object; without `name`, that of the collection."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "")


_DRA = "resource.k8s.io"
LEASES = ApiKind("coordination.k8s.io", "v1", "leases", "Lease", is_namespaced=True)
NODES = ApiKind("", "v1", "nodes", "Node", is_namespaced=False, has_status=True)
NAMESPACES = ApiKind("", "v1", "namespaces", "Namespace", is_namespaced=False, has_status=True)
PODS = ApiKind(
    "", "v1", "pods", "Pod", is_namespaced=True, has_status=True, selectable=("spec.nodeName", "status.phase")
)
SECRETS = ApiKind("", "v1", "secrets", "Secret", is_namespaced=True)
EVENTS = ApiKind(
    "",
    "v1",
    "events",
    "Event",
    is_namespaced=True,
    selectable=("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason"),
)
SLICES = ApiKind(
    _DRA,
    "v1",
    "resourceslices",
    "ResourceSlice",
    is_namespaced=False,
    has_generation=True,
    selectable=("spec.nodeName", "spec.driver"),
)
CLAIMS = ApiKind(_DRA, "v1", "resourceclaims", "ResourceClaim", is_namespaced=True, has_status=True)
TEMPLATES = ApiKind(_DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", is_namespaced=True)
CLASSES = ApiKind(_DRA, "v1", "deviceclasses", "DeviceClass", is_namespaced=False, has_generation=True)

KINDS = (NODES, NAMESPACES, PODS, SECRETS, EVENTS, LEASES, SLICES, CLAIMS, TEMPLATES, CLASSES)
_BY_PATH = {(k.group, k.version, k.plural): k for k in KINDS}
_BY_KIND = {(k.api_version, k.kind): k for k in KINDS}


@dataclass(frozen=True, slots=True)
class Target:
    """What a path refers to. `name` is "" for a collection; `subresource` is "" or "status"."""

    kind: ApiKind
    namespace: str
    name: str
    subresource: str


def kind_of(wire: Wire) -> ApiKind:
    """Return the kind of an object by its apiVersion and kind. Raises: ApiRefusal 404 if it is not served."""
    try:
        return _BY_KIND[wire["apiVersion"], wire["kind"]]
    except KeyError:
        raise unknown_path() from None


def parse_path(path: str) -> Target:
    """Return what a URL path refers to. Raises: ApiRefusal 404 for anything that is not served."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise unknown_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = _BY_PATH.get((group, version, rest[0]))
    if kind is None or len(rest) > 3 or (namespace and not kind.is_namespaced):
        raise unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if (subresource and not (subresource == "status" and kind.has_status)) or (
        name and kind.is_namespaced and not namespace
    ):
        raise unknown_path()
    return Target(kind, namespace, name, subresource)


# Selection: the field selectors and label selectors of list and watch requests.

_TERM = re.compile(r"(?P<key>[A-Za-z0-9_./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[A-Za-z0-9_./-]*))?")


@dataclass(frozen=True, slots=True)
class ObjectSelection:
    """The objects of a kind that a request selects."""

    namespace: str
    tests: tuple[Callable[[Wire], bool], ...]

    def matches(self, wire: Wire) -> bool:
        """Return whether the object is selected."""
        if self.namespace and wire["metadata"].get("namespace") != self.namespace:
            return False
        return all(test(wire) for test in self.tests)


def select(kind: ApiKind, namespace: str, fields: str, labels: str) -> ObjectSelection:
    """Parse both selectors. Raises: ApiRefusal 400 for a field that is not selectable or an unknown term."""
    tests = [_field_test(kind, term) for term in _terms(fields)]
    tests += [_label_test(term) for term in _terms(labels)]
    return ObjectSelection(namespace, tuple(tests))


def _terms(text: str) -> list[str]:
    return [term.strip() for term in text.split(",") if term.strip()]


def _field_test(kind: ApiKind, term: str) -> Callable[[Wire], bool]:
    match = _TERM.fullmatch(term)
    if not match or not match["op"]:
        raise bad_request(f"invalid field selector {term!r}")
    field, wanted, is_equal = match["key"], match["value"], match["op"] != "!="
    if field not in ("metadata.name", "metadata.namespace", *kind.selectable):
        raise bad_request(f'field label not supported for {kind.kind}: "{field}"')
    *outer, last = field.split(".")  # a field of the object, or of a mapping in it
    if not outer:
        return lambda wire: (wire.get(last, "") == wanted) is is_equal
    return lambda wire: ((wire.get(outer[0]) or {}).get(last, "") == wanted) is is_equal


def _label_test(term: str) -> Callable[[Wire], bool]:
    absent = term.startswith("!")
    match = _TERM.fullmatch(term.removeprefix("!"))
    if not match or (absent and match["op"]):
        raise bad_request(f"unable to parse requirement: {term!r} (set-based selectors are not served here)")
    key, op, wanted = match["key"], match["op"], match["value"]
    if not op:
        return lambda wire: (key in (wire["metadata"].get("labels") or {})) is not absent
    return lambda wire: ((wire["metadata"].get("labels") or {}).get(key) == wanted) is (op != "!=")


# Store: the objects in memory, their versions and their history.

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
