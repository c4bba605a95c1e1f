"""The cluster's devices, grouped by shape, and its classes: selectors are evaluated on these.

In: ResourceSlices, in pages or one by one, and DeviceClasses. Out: one device of each shape, with how many there are.
Of a slice, only its shapes are kept, and only once for all slices with the same shapes; of a class, only its
expressions. The number of shapes is bounded: if a driver has more, it is only partly known, and no warning claims that
none of its devices match. Two watches keep the fleet up to date. Never more than one page of slices is in memory,
neither at the start nor when everything is listed again.
"""

from __future__ import annotations

import logging
import marshal
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dra_driver.base.errors import NodeError
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import ClassWire, DeviceWire, SliceWire, Wire
from dra_driver.kube.answers import Changed, Deleted, Listed
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import CLASSES, SLICES
from dra_driver.kube.watch import Watch
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.tools.webhook.review import selectors

# The shapes of devices: what can matter to a selector, and how many devices of a slice have each shape.

# Attributes that distinguish devices of one shape. An author whose selector reads their values gets no warning that
# nothing matches.
IDENTITIES = frozenset(
    [
        *("uuid", "parentUUID", "uniqueID", "serial", "minor", "index", "nvlinkDomain", "fabricDomain"),
        *("pciBusID", "pciAddr", "pciAddress", "physicalFunction", "pcieRoot", "numaNode", "iommuGroup"),
    ]
)
_DIGEST_BYTES = 16
_PLAIN_MARSHAL = 2  # the newest version that writes equal values equally; later ones write references to shared objects


@dataclass(frozen=True, slots=True)
class ShapedDevice:
    """A device of a slice, the digest of its shape (`key`), and how many devices of the slice have that shape."""

    key: bytes
    driver: str
    device: DeviceWire
    count: int


def shapes_of(wire: SliceWire) -> list[ShapedDevice]:
    """Return one device of each shape in a slice; malformed devices are skipped."""
    spec = _mapping(wire.get("spec"))
    driver = str(spec.get("driver"))
    found: dict[bytes, tuple[DeviceWire, int]] = {}
    for device in _devices(spec):
        key = _shape_of(device, driver)
        first, count = found.get(key, (device, 0))
        found[key] = first, count + 1
    return [ShapedDevice(key, driver, device, count) for key, (device, count) in found.items()]


def is_identity(name: str) -> bool:
    """Return whether an attribute, with or without its domain, distinguishes devices of one shape."""
    return name.rpartition("/")[2] in IDENTITIES


def _devices(spec: Mapping[str, Any]) -> Iterator[DeviceWire]:
    devices = spec.get("devices")
    for device in map(_mapping, devices if isinstance(devices, list) else ()):
        content = _mapping(device.get("basic")) or device  # v1beta1 has the fields below `basic`
        yield {
            "attributes": _mapping(content.get("attributes")),
            "capacity": _mapping(content.get("capacity")),
            "allowMultipleAllocations": content.get("allowMultipleAllocations") is True,
        }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _shape_of(device: DeviceWire, driver: str) -> bytes:
    attributes = [
        (name, sorted(value) if is_identity(name) and isinstance(value, dict) else value)
        for name, value in sorted(device["attributes"].items())
    ]
    capacity = [
        (name, amount.get("value") if isinstance(amount, dict) else amount)
        for name, amount in sorted(device["capacity"].items())
    ]
    shape = [driver, attributes, capacity, device["allowMultipleAllocations"]]
    return blake2b(marshal.dumps(shape, _PLAIN_MARSHAL), digest_size=_DIGEST_BYTES).digest()


SLICES_A_PAGE = 25  # slices of up to 128 devices, which take some 15 MiB as wire objects
CLASSES_A_PAGE = 50
log = logging.getLogger(__name__)

MAX_SHAPES = 512  # of each driver whose configs are validated here
MAX_OTHER_SHAPES = 32  # of each other driver; every device of a network driver may differ in its addresses
_MAX_DRIVERS = 64
_SliceShapes = tuple[tuple[bytes, int], ...]  # the shapes of a slice with their counts


class FleetWatch:
    """Two threads that keep a fleet up to date."""

    def __init__(self, api: KubeApi, fleet: PublishedFleet) -> None:
        slices = Watch(api, SLICES, page_size=SLICES_A_PAGE)
        classes = Watch(api, CLASSES, page_size=CLASSES_A_PAGE)
        self._watches = (slices, classes)
        self._threads = (
            _thread(
                slices, fleet.replace_slices, fleet.put_slice, lambda wire: fleet.drop_slice(wire["metadata"]["uid"])
            ),
            _thread(
                classes, fleet.replace_classes, fleet.put_class, lambda wire: fleet.drop_class(wire["metadata"]["name"])
            ),
        )

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End both threads."""
        for watch in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(timeout_s)


def _thread(
    watch: Watch, replace: Callable[..., None], put: Callable[[Wire], None], drop: Callable[[Wire], None]
) -> threading.Thread:
    def follow() -> None:
        for event in watch.events():
            if isinstance(event, Listed):
                replace(event.objects, is_first=event.is_first, is_last=event.is_last)
            elif isinstance(event, Changed):
                put(event.wire)
            elif isinstance(event, Deleted):
                drop(event.wire)
            del event  # otherwise this page would stay in memory while the next one is read

    return threading.Thread(target=follow, name="fleet", daemon=True)


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """One device that stands for all `count` published devices of its shape."""

    view: DeviceView
    count: int


class PublishedFleet:
    """What is published now. Any thread may read; `version` changes with every change."""

    def __init__(self, drivers: Collection[str] = ()) -> None:
        self._drivers = drivers
        self._lock = threading.Lock()
        self._shape_counts = _ShapeCounts(drivers)
        self._listed: _ShapeCounts | None = None  # what was read of a list so far: no warning may rest on a part of it
        self._classes: dict[str, tuple[str, ...]] = {}
        self._listed_classes: dict[str, tuple[str, ...]] = {}
        self._shapes: tuple[DeviceShape, ...] | None = None
        self._known = {"slices": False, "classes": False}
        self.version = 0

    @property
    def is_known(self) -> bool:
        """Whether slices and classes have both been listed; before that, no warning is possible."""
        return all(self._known.values())

    def shapes(self) -> tuple[DeviceShape, ...]:
        """Return all kept shapes."""
        with self._lock:
            if self._shapes is None:
                counts = self._shape_counts.counts
                self._shapes = tuple(DeviceShape(view, counts[key]) for key, view in self._shape_counts.views.items())
            return self._shapes

    def is_partly_known(self, driver: str) -> bool:
        """Return whether a driver has more shapes than are kept."""
        with self._lock:
            return driver in self._shape_counts.partly_known

    def selectors_of(self, class_name: str) -> tuple[str, ...] | None:
        """Return the expressions of a class, or None if there is no such class."""
        with self._lock:
            return self._classes.get(class_name)

    def put_slice(self, wire: SliceWire) -> None:
        """Record the current state of a slice."""
        uid, devices = wire["metadata"]["uid"], shapes_of(wire)
        with self._lock:
            # If nothing changed, this is a new generation of the same devices, and kept verdicts stay valid.
            if self._shape_counts.put(uid, devices):
                self._changed()

    def drop_slice(self, uid: str) -> None:
        """Record that a slice is gone."""
        with self._lock:
            if self._shape_counts.drop(uid):
                self._changed()

    def put_class(self, wire: ClassWire) -> None:
        """Record the current state of a class."""
        name, expressions = wire["metadata"]["name"], _expressions(wire)
        with self._lock:
            if self._classes.get(name) != expressions:
                self._classes[name] = expressions
                self._changed()

    def drop_class(self, name: str) -> None:
        """Record that a class is gone."""
        with self._lock:
            self._classes.pop(name, None)
            self._changed()

    def replace_slices(self, slices: Iterable[SliceWire], *, is_first: bool = True, is_last: bool = True) -> None:
        """Record all slices, page by page; with the last page they replace what was known."""
        if is_first or self._listed is None:
            self._listed = _ShapeCounts(self._drivers)
        for wire in slices:
            self._listed.put(wire["metadata"]["uid"], shapes_of(wire))
        if is_last:
            with self._lock:
                self._shape_counts, self._listed = self._listed, None
            self._set_known("slices")

    def replace_classes(self, classes: Iterable[ClassWire], *, is_first: bool = True, is_last: bool = True) -> None:
        """Record all classes, page by page."""
        if is_first:
            self._listed_classes = {}
        self._listed_classes.update({wire["metadata"]["name"]: _expressions(wire) for wire in classes})
        if is_last:
            with self._lock:
                self._classes, self._listed_classes = self._listed_classes, {}
            self._set_known("classes")

    def _set_known(self, kind: str) -> None:
        with self._lock:
            self._known[kind] = True
            self._changed()

    def _changed(self) -> None:
        self._shapes = None
        self.version += 1


class _ShapeCounts:
    """The number of devices of each shape, and the shapes of each slice."""

    def __init__(self, drivers: Collection[str]) -> None:
        self._own = drivers
        self._shapes_of: dict[str, _SliceShapes] = {}  # by the slice's UID
        # The one copy of its shapes that all equal slices share, and how many slices share it.
        self._copies: dict[_SliceShapes, tuple[_SliceShapes, int]] = {}
        self._drivers: dict[str, set[bytes]] = {}
        self.counts: dict[bytes, int] = {}
        self.views: dict[bytes, DeviceView] = {}
        self.partly_known: set[str] = set()

    def put(self, uid: str, devices: list[ShapedDevice]) -> bool:
        """Count a slice, and stop counting its former state; return whether anything changed."""
        shapes = tuple(sorted((device.key, device.count) for device in devices))
        before = self._shapes_of.get(uid)
        if before == shapes:
            return False
        for device in devices:
            self.counts[device.key] = self.counts.get(device.key, 0) + device.count
            if device.key not in self.views:
                self._keep(device)
        shared, holders = self._copies.get(shapes, (shapes, 0))
        self._copies[shared] = shared, holders + 1
        if before is not None:
            self._forget(before)
        self._shapes_of[uid] = shared
        return True

    def drop(self, uid: str) -> bool:
        """Stop counting a slice; return whether it was known."""
        before = self._shapes_of.pop(uid, None)
        if before is None:
            return False
        self._forget(before)
        return True

    def _keep(self, one: ShapedDevice) -> None:
        """Keep a device as the example of its shape, if there is room."""
        maximum = MAX_SHAPES if one.driver in self._own else MAX_OTHER_SHAPES
        kept = self._drivers.get(one.driver, set())
        if len(kept) < maximum and (kept or len(self._drivers) < _MAX_DRIVERS or one.driver in self._own):
            self._drivers.setdefault(one.driver, kept).add(one.key)
            self.views[one.key] = prepare_device(one.device, one.driver)
        elif one.driver not in self.partly_known and len(self.partly_known) < _MAX_DRIVERS:
            self.partly_known.add(one.driver)
            log.info("a driver has more shapes of devices than are kept", extra=fields(driver=one.driver))

    def _forget(self, shapes: _SliceShapes) -> None:
        shared, holders = self._copies[shapes]
        if holders > 1:
            self._copies[shared] = shared, holders - 1
        else:
            del self._copies[shared]
        for key, count in shapes:
            left = self.counts[key] - count
            if left:
                self.counts[key] = left
                continue
            del self.counts[key]
            view = self.views.pop(key, None)
            if view is not None:
                kept = self._drivers[view.driver]
                kept.discard(key)
                if not kept:
                    del self._drivers[view.driver]


def _expressions(wire: ClassWire) -> tuple[str, ...]:
    return tuple(selector.expression for selector in selectors("DeviceClass", wire))


# Callers: who may ask for reviews, in clusters whose API servers can prove who they are.


class Callers:
    """The callers that may ask for reviews: those with a certificate of `authorities` for one of `names`."""

    def __init__(self, authorities: Path | None = None, names: tuple[str, ...] = ()) -> None:
        self._authorities, self._names = authorities, names

    def prepare(self, context: ssl.SSLContext) -> None:
        """Make a TLS context ask for client certificates. Raises: NodeError("node.client-authorities")."""
        if self._authorities is None:
            return
        try:
            context.load_verify_locations(self._authorities)
        except (OSError, ssl.SSLError) as error:
            raise NodeError(
                "client-authorities", f"the authorities in {self._authorities} can't be used: {error}",
                hint="expected PEM certificates of the authorities that sign client certificates for API servers",
            ) from error  # fmt: skip
        context.verify_mode = ssl.CERT_OPTIONAL

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a caller with this certificate, which the handshake has verified, is refused; "" if it may ask."""
        if self._authorities is None:
            return ""
        if not certificate:
            return "a client certificate is needed"
        if not self._names or names_of(certificate) & set(self._names):
            return ""
        return "the client certificate names no caller that may ask"


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the common name and the DNS names of a certificate, as `ssl` describes one that it has verified."""
    found = certificate or {}
    common = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(common | {value for kind, value in found.get("subjectAltName", ()) if kind == "DNS"})
