"""Fleet: the devices of the cluster as shapes, and its classes; what selectors are judged on.

In: ResourceSlices, in pages or one by one, and DeviceClasses. Out: one device of each shape with how many there are.
Of a slice it keeps what the slice is made of, once for all that are made of the same; of a class its expressions. How
many shapes are kept is bounded: a driver with more is known in part, and nobody is told that none of its devices match.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.model.wire import ClassWire, SliceWire
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.telemetry.logs import fields
from dra_driver.webhook.objects import selectors
from dra_driver.webhook.shapes import ShapedDevice, shapes_of

log = logging.getLogger(__name__)

MOST_SHAPES = 512  # of the driver whose configs are judged here
MOST_OTHER_SHAPES = 32  # of each other driver: of a network interface every device may differ in its addresses
_MOST_DRIVERS = 64
_Made = tuple[tuple[bytes, int], ...]  # shapes of a slice with their counts


@dataclass(frozen=True, slots=True)
class Shape:
    """One device of many that are alike. `count` of them are published."""

    view: DeviceView
    count: int


class PublishedFleet:
    """What is published now. Any thread may read; `version` changes with every change."""

    def __init__(self, driver: str = "") -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._census = _Census(driver)
        self._coming: _Census | None = None  # while a list is read: on a part of it nothing may be said
        self._classes: dict[str, tuple[str, ...]] = {}
        self._coming_classes: dict[str, tuple[str, ...]] = {}
        self._shapes: tuple[Shape, ...] | None = None
        self._known = {"slices": False, "classes": False}
        self.version = 0

    @property
    def is_known(self) -> bool:
        """Whether both were listed: before it, nothing can be said."""
        return all(self._known.values())

    def shapes(self) -> tuple[Shape, ...]:
        """Return every shape that is kept."""
        with self._lock:
            if self._shapes is None:
                counts = self._census.counts
                self._shapes = tuple(Shape(view, counts[key]) for key, view in self._census.views.items())
            return self._shapes

    def is_partly_known(self, driver: str) -> bool:
        """Whether a driver has more shapes than are kept."""
        with self._lock:
            return driver in self._census.crowded

    def selectors_of(self, class_name: str) -> tuple[str, ...] | None:
        """Return the expressions of a class; None if there is no such class."""
        with self._lock:
            return self._classes.get(class_name)

    def put_slice(self, wire: SliceWire) -> None:
        """Take note of a slice as it is now."""
        uid, devices = wire["metadata"]["uid"], shapes_of(wire)
        with self._lock:
            if self._census.put(uid, devices):  # else a new generation of the same devices: what was said holds
                self._changed()

    def drop_slice(self, uid: str) -> None:
        """Take note that a slice is gone."""
        with self._lock:
            if self._census.drop(uid):
                self._changed()

    def put_class(self, wire: ClassWire) -> None:
        """Take note of a class as it is now."""
        name, expressions = wire["metadata"]["name"], _expressions(wire)
        with self._lock:
            if self._classes.get(name) != expressions:
                self._classes[name] = expressions
                self._changed()

    def drop_class(self, name: str) -> None:
        """Take note that a class is gone."""
        with self._lock:
            self._classes.pop(name, None)
            self._changed()

    def replace_slices(self, slices: Iterable[SliceWire], *, is_first: bool = True, is_last: bool = True) -> None:
        """Take note of all slices, page by page: from the first to the last they replace what was known."""
        if is_first or self._coming is None:
            self._coming = _Census(self._driver)
        for wire in slices:
            self._coming.put(wire["metadata"]["uid"], shapes_of(wire))
        if is_last:
            with self._lock:
                self._census, self._coming = self._coming, None
            self._set_known("slices")

    def replace_classes(self, classes: Iterable[ClassWire], *, is_first: bool = True, is_last: bool = True) -> None:
        """Take note of all classes, page by page."""
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
    """How many devices there are of each shape, and of what shapes each slice is made."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._made_of: dict[str, _Made] = {}  # by the slice's UID
        self._alike: dict[_Made, tuple[_Made, int]] = {}  # the one that all equal slices share, and how many do
        self._drivers: dict[str, set[bytes]] = {}
        self.counts: dict[bytes, int] = {}
        self.views: dict[bytes, DeviceView] = {}
        self.crowded: set[str] = set()

    def put(self, uid: str, devices: list[ShapedDevice]) -> bool:
        """Count a slice in place of what it was; return whether that made a difference."""
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
        """Count a slice no longer; return whether it was known."""
        before = self._made_of.pop(uid, None)
        if before is None:
            return False
        self._forget(before)
        return True

    def _keep(self, one: ShapedDevice) -> None:
        """Keep a device for its shape, if there is room."""
        most = MOST_SHAPES if one.driver == self._driver else MOST_OTHER_SHAPES
        kept = self._drivers.get(one.driver, set())
        if len(kept) < most and (kept or len(self._drivers) < _MOST_DRIVERS or one.driver == self._driver):
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
