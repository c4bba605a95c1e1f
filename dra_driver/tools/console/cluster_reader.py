"""Read a cluster for the console: one watch for each kind, shared by all viewers of a backend.

In: access to a cluster. Out: a `BoardUpdate` for the worker. Lists come page by page; before an object is sent on, it
is cut down to the fields that are kept. Only GET requests are sent. Without `Rights` the reader tries what it may read:
a kind that may not be read in all namespaces is read in the home namespace of the credentials, and a kind that may not
be read at all is tried again every minute. With `Rights` it reads what they permit and nothing else, even if its
credentials permit more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dra_driver.base.errors import ApiError, DriverError, InputError
from dra_driver.base.names import is_dns_label, is_dns_subdomain
from dra_driver.base.versions import nearest_version
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.kube.answers import FORBIDDEN, Changed, Deleted, Event, Listed
from dra_driver.kube.api import KubeApi
from dra_driver.kube.watch import Watch
from dra_driver.tools.console.board import trimmed
from dra_driver.tools.console.board_updates import BoardUpdate, KindUnreadable, ObjectChanged, PageRead, VersionRead
from dra_driver.tools.console.events import KINDS, Notices, SharedPlaces, WatchedKind
from dra_driver.tools.world.access import UnseenObjects

# What one viewer may read, kind by kind, if the console serves several viewers.

MAX_NAMESPACES = 20  # namespaces watched for a viewer who may not read all of them; each has watches of its own


@dataclass(frozen=True, slots=True)
class Rights:
    """`everywhere` are the kinds of which all objects may be read, `within` pairs of a kind and a namespace."""

    everywhere: frozenset[str] = frozenset()
    within: frozenset[tuple[str, str]] = frozenset()

    def sees(self, kind: str, namespace: str) -> bool:
        """Return whether objects of a kind in a namespace may be read."""
        return kind in self.everywhere or (kind, namespace) in self.within

    def places(self, kind: str) -> tuple[str, ...]:
        """Return the namespaces in which a kind may be read; "" stands for all of them."""
        return ("",) if kind in self.everywhere else tuple(sorted(name for one, name in self.within if one == kind))

    def unseen(self) -> list[UnseenObjects]:
        """Return the kinds that may not be read."""
        hidden = [one for one in KINDS if one.name not in self.everywhere]
        return [UnseenObjects(one.name, "", is_partial=bool(self.places(one.name))) for one in hidden]


def rights_of(may: Callable[[WatchedKind, str], bool], namespaces: Callable[[], Sequence[str]]) -> Rights:
    """Return what may be read: `may` is called for each kind in all namespaces, then for single namespaces.

    `namespaces` is called only for a viewer who may not read all of them. Raises: what these two functions raise.
    """
    everywhere = frozenset(one.name for one in KINDS if may(one, ""))
    others = [one for one in KINDS if one.has_namespaces and one.name not in everywhere]
    known = [name for name in namespaces() if is_dns_label(name)][:MAX_NAMESPACES] if others else ()
    return Rights(everywhere, frozenset((one.name, name) for name in known for one in others if may(one, name)))


log = logging.getLogger(__name__)

_AGAIN_SECONDS = 60.0
_FAULT_SECONDS = 2.0
_MAX_PODS = 20  # pods of a claim that is being shown


class ReadAccess(Protocol):
    """A cluster, and credentials to read it with."""

    @property
    def home(self) -> str:
        """The namespace that is read where not all namespaces may be read. Raises: InputError."""

    def connect(self) -> KubeApi:
        """Connect to the cluster. Raises: InputError, NodeError."""


@dataclass(slots=True)
class ClusterReader:
    """The watches of one backend. `send` is called with the updates, from several threads, one at a time."""

    access: ReadAccess
    send: Callable[[BoardUpdate], None]
    rights: Rights | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _watches: dict[tuple[str, str], Watch] = field(default_factory=dict)
    _api: KubeApi | None = None
    _fault: str = ""

    def start(self) -> None:
        """Begin to read. Raises: InputError, NodeError for credentials that can't be used."""
        self._stopping.clear()
        api = self._api = self.access.connect()
        threading.Thread(target=self._version, args=(api,), daemon=True).start()
        for unseen in self.rights.unseen() if self.rights else ():
            self._send_update(KindUnreadable(unseen))
        for kind in KINDS:
            for place in self.rights.places(kind.name) if self.rights else (None,):
                words = (api, kind, place)
                threading.Thread(target=self._follow, args=words, name=f"watch {kind.name}", daemon=True).start()

    def stop(self) -> None:
        """End all watches."""
        self._stopping.set()
        for watch in list(self._watches.values()):
            watch.stop()
        if self._api is not None:
            self._api.close()
            self._api = None

    @property
    def is_reading(self) -> bool:
        """Whether the reader was started and has not been stopped since."""
        return self._api is not None and not self._stopping.is_set()

    @property
    def fault(self) -> str:
        """Why the cluster does not answer at the moment; "" if it does."""
        faults = [watch.fault.message for watch in list(self._watches.values()) if watch.fault is not None]
        return faults[0] if faults else self._fault

    def objects_of_claim(self, namespace: str, name: str) -> tuple[Wire, list[Wire]]:
        """Read a claim and the pods that use it, as they are now.

        Raises: ApiError; InputError if rights are missing.
        """
        if self.rights is not None and not self.rights.sees("ResourceClaim", namespace):
            raise InputError("missing", f"there is no claim {namespace}/{name}, or it may not be read")
        api = self.access.connect()
        try:
            claim = api.request("GET", paths.claim_path(namespace, name))
            pods = [self._pod(api, namespace, one) for one in _users(claim)[:_MAX_PODS]]
            found = [trimmed("Pod", one) for one in pods if one is not None]
            return trimmed("ResourceClaim", claim), found
        finally:
            api.close()

    def history(self, subject: HistorySubject) -> Wire:
        """Read what has happened to an object: its conditions, the state of its containers, and its Events.

        Only where the credentials are the viewer's own: the API server judges what may be read. Raises: ApiError;
        NodeError, InputError for credentials that can't be used.
        """
        api = self.access.connect()
        try:
            wire = api.request("GET", paths.named(subject.path, subject.name))
            return _history_content(wire, *_events_about(api, subject))
        finally:
            api.close()

    def _pod(self, api: KubeApi, namespace: str, name: str) -> Wire | None:
        """Return a pod; None if it is gone or the viewer may not read it: the claim is then shown without it."""
        if self.rights is not None and not self.rights.sees("Pod", namespace):
            return None
        try:
            return api.request("GET", paths.named(paths.within(paths.PODS, namespace), name))
        except ApiError:
            return None

    def _version(self, api: KubeApi) -> None:
        while not self._stopping.is_set():
            try:
                self._send_update(VersionRead(nearest_version(api.server_version().minor)))
            except ApiError as fault:
                self._fault = fault.message
                self._stopping.wait(_FAULT_SECONDS)
            else:
                self._fault = ""
                return

    def _follow(self, api: KubeApi, kind: WatchedKind, place: str | None) -> None:
        """Watch a kind until the reader is stopped.

        `place` is the namespace to watch; "" stands for all of them, None for those that turn out to be permitted.
        """
        while not self._stopping.is_set():
            path = self._permitted(api, kind) if place is None else _path(kind, place)
            if path is None:
                self._stopping.wait(_AGAIN_SECONDS)
                continue
            watch = self._watches[kind.name, place or ""] = Watch(api, path, field_selector=kind.fields)
            if self._stopping.is_set():
                return
            for event in watch.events():
                self._take(kind.name, place or "", event)

    def _permitted(self, api: KubeApi, kind: WatchedKind) -> str | None:
        """Return the path that may be listed; None if none may be listed, or the reader was stopped meanwhile."""
        try:
            if self._may(api, kind.path):
                return kind.path
            home = self.access.home if kind.has_namespaces else ""
            path = paths.within(kind.path, home) if home else ""
            is_partial = bool(path) and self._may(api, path)
        except ApiError as fault:
            self._fault = fault.message
            self._stopping.wait(_FAULT_SECONDS)
            return self._permitted(api, kind) if not self._stopping.is_set() else None
        self._fault = ""
        self._send_update(KindUnreadable(UnseenObjects(kind.name, home, is_partial=is_partial)))
        return path if is_partial else None

    @staticmethod
    def _may(api: KubeApi, path: str) -> bool:
        try:
            api.request("GET", path, query={"limit": "1"})
        except ApiError as fault:
            if fault.code == FORBIDDEN:
                return False
            raise
        return True

    def _take(self, kind: str, place: str, event: Event) -> None:
        match event:
            case Listed(objects, _, is_first, is_last):
                content = json.dumps({"items": [trimmed(kind, one) for one in objects]}).encode()
                self._send_update(PageRead(kind, content, is_first, is_last, place))
            case Changed(wire):
                self._send_update(ObjectChanged(kind, trimmed(kind, wire)))
            case Deleted(wire):
                self._send_update(ObjectChanged(kind, trimmed(kind, wire), is_gone=True))

    def _send_update(self, update: BoardUpdate) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            try:
                self.send(update)
            except (OSError, ValueError):
                self._stopping.set()  # the worker is gone, so the console is about to end


# What has happened to one object, as its conditions and Events tell.

_MAX_EVENTS = 100
_MAX_TEXT = 1_000  # characters of a message
_ADDRESS = re.compile(r"gpu-([0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7])")  # see `gpu_name`
_HISTORIES = {"pod": ("Pod", paths.PODS), "claim": ("ResourceClaim", paths.CLAIMS), "node": ("Node", paths.NODES)}


@dataclass(frozen=True, slots=True)
class HistorySubject:
    """A pod, a claim or a node. With `device`, only the Events that name this device count."""

    kind: str
    namespace: str
    name: str
    device: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> HistorySubject:
        """Return what a question names. Raises: InputError for a kind or a name that the API does not have."""
        kind, namespace, name, device = (str(given.get(key) or "") for key in ("kind", "namespace", "name", "device"))
        is_known = kind in _HISTORIES and is_dns_subdomain(name) and (kind == "node" or is_dns_label(namespace))
        if not is_known or (device and not is_dns_label(device)):
            raise InputError("question", "the kind (pod, claim or node), namespace and name of an object are needed")
        return cls(kind, namespace, name, device)

    @property
    def path(self) -> str:
        """The path of the objects of its kind."""
        path = _HISTORIES[self.kind][1]
        return path if self.kind == "node" else paths.within(path, self.namespace)

    @property
    def events(self) -> tuple[str, str]:
        """The path of its Events, and the selector of their fields. Those of nodes are in the namespace default."""
        fields = f"involvedObject.kind={_HISTORIES[self.kind][0]},involvedObject.name={self.name}"
        return paths.within(paths.EVENTS, "default" if self.kind == "node" else self.namespace), fields


def _events_about(api: KubeApi, subject: HistorySubject) -> tuple[list[Wire], bool]:
    """Return the Events about an object, the newest first, and whether they may be read. Raises: ApiError."""
    path, fields = subject.events
    try:
        answer = api.request("GET", path, query={"fieldSelector": fields, "limit": "500"})
    except ApiError as fault:
        if fault.code == FORBIDDEN:
            return [], False
        raise
    rows = [_event(one) for one in answer.get("items") or () if isinstance(one, dict)]
    rows = [one for one in rows if _is_about(one["message"], subject.device)]
    return sorted(rows, key=lambda one: str(one["time"] or ""), reverse=True)[:_MAX_EVENTS], True


def _is_about(message: str, device: str) -> bool:
    """Return whether a message names a device: by its name, or, as reports of faults do, by the GPU's PCI address."""
    address = _ADDRESS.fullmatch(device)
    return device in message or (address is not None and address[1] in re.sub(r"[:.]", "-", message))


def _event(wire: Wire) -> Wire:
    series, source = wire.get("series"), wire.get("source")
    last = series.get("lastObservedTime") if isinstance(series, dict) else None
    times = (last, wire.get("lastTimestamp"), wire.get("eventTime"), wire.get("firstTimestamp"))
    component = source.get("component") if isinstance(source, dict) else None
    return {
        "time": next((one for one in times if isinstance(one, str) and one), None),
        "warning": wire.get("type") == "Warning",
        "reason": _cut(wire.get("reason")),
        "message": _cut(wire.get("message")),
        "from": _cut(wire.get("reportingComponent") or component),
    }


def _history_content(wire: Wire, events: list[Wire], is_readable: bool) -> Wire:
    spec, status = (wire[key] if isinstance(wire.get(key), dict) else {} for key in ("spec", "status"))
    conditions = status.get("conditions")
    return {
        "phase": _cut(status.get("phase")),
        "node": _cut(spec.get("nodeName")),
        "conditions": [
            {key: _cut(one.get(key)) for key in ("type", "status", "reason", "message")}
            | {"since": _cut(one.get("lastTransitionTime")) or None}
            for one in (conditions if isinstance(conditions, list) else ())[:_MAX_EVENTS]
            if isinstance(one, dict)
        ],
        "events": events,
        "eventsKnown": is_readable,
    }


def _cut(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _users(claim: Wire) -> list[str]:
    """Return the names of the pods for which a claim is reserved; a name that no pod can have is left out."""
    status = claim.get("status")
    users = status.get("reservedFor") if isinstance(status, dict) else None
    entries = [one for one in users if isinstance(one, dict)] if isinstance(users, list) else []
    names = [one.get("name") for one in entries if one.get("resource") == "pods"]
    return [name for name in names if isinstance(name, str) and is_dns_subdomain(name)]


def _path(kind: WatchedKind, place: str) -> str:
    return paths.within(kind.path, place) if place else kind.path


# Reading on demand: the cluster is watched while a page is open, and some minutes longer.

UNSEEN_SECONDS = 300.0  # after the last page was closed
_SECONDS = 0.5


@dataclass(slots=True)
class OnDemandReading:
    """Starts a reader when a page is opened, and stops it some minutes after the last one was closed."""

    reader: ClusterReader
    notices: Notices
    _seen_at: float = 0.0
    _fault: str = ""

    async def run(self) -> None:
        """Start and stop the reader until cancelled."""
        while True:
            if self.notices.streams:
                self._seen_at = time.monotonic()
                if not self.reader.is_reading:
                    self._start()
            elif self.reader.is_reading and time.monotonic() - self._seen_at > UNSEEN_SECONDS:
                self.reader.stop()
            self._post_fault(self.reader.fault if self.reader.is_reading else self._fault)
            await asyncio.sleep(_SECONDS)

    def _start(self) -> None:
        try:
            self.reader.start()
        except DriverError as fault:
            self._post_fault(fault.message)

    def _post_fault(self, fault: str) -> None:
        if fault != (self.notices.latest("cluster") or ""):
            self._fault = fault
            self.notices.post("cluster", fault)


# The work that a console does beside serving pages, and the memory that it may take: in all not more than there is.

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # cgroup v2, and v1
_CHART = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkBudget:
    """The places of one console, and the bytes of memory that each question or command may add.

    `heavy` is for questions that simulate the scheduler, `quick` for all other questions.
    """

    heavy_bytes: int = 1 << 30
    quick_bytes: int = 1 << 30
    command_bytes: int = 2 << 30
    heavy: SharedPlaces = field(default_factory=lambda: SharedPlaces(2, 1, 16))
    quick: SharedPlaces = field(default_factory=lambda: SharedPlaces(4, 2, 64))
    commands: SharedPlaces = field(default_factory=lambda: SharedPlaces(2, 1, 8))

    @classmethod
    def within(cls, limit: int) -> WorkBudget:
        """Return a budget that fits into a container with a memory limit of so many bytes."""
        part = limit / _CHART
        return cls(int(160 * _MIB * part), int(48 * _MIB * part), int(192 * _MIB * part))


def container_limit() -> int:
    """Return the memory limit of this container; that of the chart if there is none."""
    for path in _LIMITS:
        with suppress(OSError, ValueError):
            limit = int(Path(path).read_text())
            if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                return limit
    return _CHART
