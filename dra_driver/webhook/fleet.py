"""The cluster's devices as shapes, and its classes: what selectors are evaluated on.

In: ResourceSlices, in pages or one by one, and DeviceClasses. Out: one device of each shape, with how many there are.
Of a slice, only its shapes are kept, once for all slices that have the same; of a class, only its expressions. The
number of shapes is bounded: if a driver has more, it is only partly known, and no warning claims that none of its
devices match.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dra_driver.model.wire import ClassWire, SliceWire
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.telemetry.logs import fields
from dra_driver.webhook.objects import selectors
from dra_driver.webhook.shapes import ShapedDevice, shapes_of

log = logging.getLogger(__name__)

MOST_SHAPES = 512  # of each driver whose configs are validated here
MOST_OTHER_SHAPES = 32  # of each other driver; every device of a network driver may differ in its addresses
_MOST_DRIVERS = 64
_Made = tuple[tuple[bytes, int], ...]  # the shapes of a slice with their counts


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
        self._census = _Census(drivers)
        self._coming: _Census | None = None  # set while a list is being read; no warning may rest on part of a list
        self._classes: dict[str, tuple[str, ...]] = {}
        self._coming_classes: dict[str, tuple[str, ...]] = {}
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
                counts = self._census.counts
                self._shapes = tuple(DeviceShape(view, counts[key]) for key, view in self._census.views.items())
            return self._shapes

    def is_partly_known(self, driver: str) -> bool:
        """Return whether a driver has more shapes than are kept."""
        with self._lock:
            return driver in self._census.crowded

    def selectors_of(self, class_name: str) -> tuple[str, ...] | None:
        """Return the expressions of a class, or None if there is no such class."""
        with self._lock:
            return self._classes.get(class_name)

    def put_slice(self, wire: SliceWire) -> None:
        """Record the current state of a slice."""
        uid, devices = wire["metadata"]["uid"], shapes_of(wire)
        with self._lock:
            if self._census.put(
                uid, devices
            ):  # otherwise it is a new generation of the same devices, and kept verdicts stay valid
                self._changed()

    def drop_slice(self, uid: str) -> None:
        """Record that a slice is gone."""
        with self._lock:
            if self._census.drop(uid):
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
        if is_first or self._coming is None:
            self._coming = _Census(self._drivers)
        for wire in slices:
            self._coming.put(wire["metadata"]["uid"], shapes_of(wire))
        if is_last:
            with self._lock:
                self._census, self._coming = self._coming, None
            self._set_known("slices")

    def replace_classes(self, classes: Iterable[ClassWire], *, is_first: bool = True, is_last: bool = True) -> None:
        """Record all classes, page by page."""
        if is_first:
            self._coming_classes = {}
        self._coming_classes.update({wire["metadata"]["name"]: _expressions(wire) for wire in classes})
        if is_last:
            with self._lock:
                self._classes, self._coming_classes = self._coming_classes, {}
            self._set_known("classes")

    def _set_known(self, kind: str) -> None:
        with self._lock:
            self._known[kind] = True
            self._changed()

    def _changed(self) -> None:
        self._shapes = None
        self.version += 1


class _Census:
    """The number of devices of each shape, and the shapes of each slice."""

    def __init__(self, drivers: Collection[str]) -> None:
        self._own = drivers
        self._made_of: dict[str, _Made] = {}  # by the slice's UID
        self._alike: dict[
            _Made, tuple[_Made, int]
        ] = {}  # the one copy that all equal slices share, and how many share it
        self._drivers: dict[str, set[bytes]] = {}
        self.counts: dict[bytes, int] = {}
        self.views: dict[bytes, DeviceView] = {}
        self.crowded: set[str] = set()

    def put(self, uid: str, devices: list[ShapedDevice]) -> bool:
        """Count a slice in place of its former state; return whether that changed anything."""
        made = tuple(sorted((one.key, one.count) for one in devices))
        before = self._made_of.get(uid)
        if before == made:
            return False
        for one in devices:
            self.counts[one.key] = self.counts.get(one.key, 0) + one.count
            if one.key not in self.views:
                self._keep(one)
        shared, holders = self._alike.get(made, (made, 0))
        self._alike[shared] = shared, holders + 1
        if before is not None:
            self._forget(before)
        self._made_of[uid] = shared
        return True

    def drop(self, uid: str) -> bool:
        """Stop counting a slice; return whether it was known."""
        before = self._made_of.pop(uid, None)
        if before is None:
            return False
        self._forget(before)
        return True

    def _keep(self, one: ShapedDevice) -> None:
        """Keep a device as the example of its shape, if there is room."""
        most = MOST_SHAPES if one.driver in self._own else MOST_OTHER_SHAPES
        kept = self._drivers.get(one.driver, set())
        if len(kept) < most and (kept or len(self._drivers) < _MOST_DRIVERS or one.driver in self._own):
            self._drivers.setdefault(one.driver, kept).add(one.key)
            self.views[one.key] = prepare_device(one.device, one.driver)
        elif one.driver not in self.crowded and len(self.crowded) < _MOST_DRIVERS:
            self.crowded.add(one.driver)
            log.info("a driver has more shapes of devices than are kept", extra=fields(driver=one.driver))

    def _forget(self, made: _Made) -> None:
        shared, holders = self._alike[made]
        if holders > 1:
            self._alike[shared] = shared, holders - 1
        else:
            del self._alike[shared]
        for key, count in made:
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
    return tuple(one.expression for one in selectors("DeviceClass", wire))
