"""Fleet: the devices of the cluster as shapes, kept by two watches; what selectors are judged on.

In: ResourceSlices and DeviceClasses. Out: one device of each shape with how many there are. Devices that differ only in
what tells them apart (UUID, PCI address, serial) have one shape, so that a thousand equal nodes take the room of one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.api import KubeApi
from dra_driver.kube.watch import Changed, Deleted, Listed, Watch
from dra_driver.model.wire import ClassWire, DeviceWire, SliceWire, Wire
from dra_driver.selectors.device_view import DeviceView, prepare_device

log = logging.getLogger(__name__)

# Attributes that tell devices of one shape apart: whoever asks for their values is not told that nothing matches.
IDENTITIES = frozenset(
    {"uuid", "parentUUID", "serial", "pciBusID", "pcieRoot", "minor", "index", "nvlinkDomain", "numaNode"}
)
_Devices = dict[str, tuple[DeviceWire, str, int]]
_SLICES, _CLASSES = "/apis/resource.k8s.io/v1/resourceslices", "/apis/resource.k8s.io/v1/deviceclasses"


@dataclass(frozen=True, slots=True)
class Shape:
    """One device of many that are alike. `count` of them are published."""

    view: DeviceView
    count: int


class Fleet:
    """What is published now. Any thread may read; `version` changes with every change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slices: dict[str, Counter[str]] = {}
        self._views: dict[str, DeviceView] = {}
        self._classes: dict[str, ClassWire] = {}
        self._shapes: tuple[Shape, ...] | None = None
        self._known = {"slices": False, "classes": False}
        self.version = 0

    @property
    def is_known(self) -> bool:
        """Say whether both were listed: before it, nothing can be said."""
        return all(self._known.values())

    def shapes(self) -> tuple[Shape, ...]:
        """Give every shape."""
        with self._lock:
            if self._shapes is None:
                total: Counter[str] = Counter()
                for counts in self._slices.values():
                    total.update(counts)
                self._views = {key: self._views[key] for key in total}
                self._shapes = tuple(Shape(self._views[key], count) for key, count in total.items())
            return self._shapes

    def selectors_of(self, class_name: str) -> tuple[str, ...] | None:
        """Give the expressions of a class; None if there is no such class."""
        with self._lock:
            found = self._classes.get(class_name)
        if found is None:
            return None
        entries = (found.get("spec") or {}).get("selectors") or ()
        return tuple(entry["cel"]["expression"] for entry in entries if entry.get("cel"))

    def put_slice(self, wire: SliceWire) -> None:
        """Take note of a slice as it is now."""
        devices = _by_shape(wire)
        with self._lock:
            uid, keys = wire["metadata"]["uid"], _counted(devices)
            if self._slices.get(uid) == keys:
                return  # a new generation of the same devices: what was said of them holds
            self._slices[uid] = keys
            self._prepare(devices)
            self._changed()

    def drop_slice(self, uid: str) -> None:
        """Take note that a slice is gone."""
        with self._lock:
            self._slices.pop(uid, None)
            self._changed()

    def put_class(self, wire: ClassWire) -> None:
        """Take note of a class as it is now."""
        with self._lock:
            self._classes[wire["metadata"]["name"]] = wire
            self._changed()

    def drop_class(self, name: str) -> None:
        """Take note that a class is gone."""
        with self._lock:
            self._classes.pop(name, None)
            self._changed()

    def replace_slices(self, slices: Iterable[SliceWire]) -> None:
        """Take note of all slices at once: on a part of them nothing may be said."""
        listed = {wire["metadata"]["uid"]: _by_shape(wire) for wire in slices}
        with self._lock:
            self._slices = {uid: _counted(devices) for uid, devices in listed.items()}
            for devices in listed.values():
                self._prepare(devices)
        self._set_known("slices")

    def replace_classes(self, classes: tuple[ClassWire, ...]) -> None:
        """Take note of all classes."""
        with self._lock:
            self._classes = {wire["metadata"]["name"]: wire for wire in classes}
        self._set_known("classes")

    def _prepare(self, devices: _Devices) -> None:
        for key, (device, driver, _) in devices.items():
            if key not in self._views:
                self._views[key] = prepare_device(device, driver)

    def _set_known(self, kind: str) -> None:
        with self._lock:
            self._known[kind] = True
            self._changed()

    def _changed(self) -> None:
        self._shapes = None
        self.version += 1


class FleetWatch:
    """Keeps a fleet up to date, in two threads."""

    def __init__(self, api: KubeApi, fleet: Fleet) -> None:
        self._watches = (Watch(api, _SLICES), Watch(api, _CLASSES))
        slices, classes = self._watches
        self._threads = (
            _thread(
                slices, fleet.replace_slices, fleet.put_slice, lambda wire: fleet.drop_slice(wire["metadata"]["uid"])
            ),
            _thread(
                classes, fleet.replace_classes, fleet.put_class, lambda wire: fleet.drop_class(wire["metadata"]["name"])
            ),
        )

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End both threads."""
        for watch in self._watches:
            watch.stop()
        for thread in self._threads:
            thread.join(timeout_s)


def _thread(
    watch: Watch,
    replace: Callable[[tuple[Wire, ...]], None],
    put: Callable[[Wire], None],
    drop: Callable[[Wire], None],
) -> threading.Thread:
    def follow() -> None:
        listed: list[Wire] = []
        for event in watch.events():
            if isinstance(event, Listed):
                listed = [*([] if event.is_first else listed), *event.objects]
                if event.is_last:
                    replace(tuple(listed))
                    listed = []
            elif isinstance(event, Changed):
                put(event.wire)
            elif isinstance(event, Deleted):
                drop(event.wire)

    return threading.Thread(target=follow, name="fleet", daemon=True)


def _by_shape(wire: SliceWire) -> _Devices:
    """Give one device of each shape in a slice, its driver, and how many there are."""
    spec = wire["spec"]
    found: _Devices = {}
    for device in spec.get("devices") or ():
        key = _shape_of(device, spec["driver"])
        found[key] = (device, spec["driver"], found[key][2] + 1 if key in found else 1)
    return found


def _counted(devices: _Devices) -> Counter[str]:
    return Counter({key: count for key, (_, _, count) in devices.items()})


def _shape_of(device: DeviceWire, driver: str) -> str:
    """Name the shape of a device: what it says, without what tells it from its like."""
    basic: Mapping[str, Any] = device.get("basic") or device  # v1beta1
    attributes = {
        name: "" if name.rpartition("/")[2] in IDENTITIES else value
        for name, value in (basic.get("attributes") or {}).items()
    }
    said = [driver, attributes, basic.get("capacity"), bool(basic.get("allowMultipleAllocations"))]
    return json.dumps(said, sort_keys=True, separators=(",", ":"))
