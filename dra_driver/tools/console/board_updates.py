"""Bring the board up to date with what the watches of a cluster report.

In: messages from the console. Out: a changed board. An object that does not have the shape of its kind, or has no name,
is left out and counted. ResourceSlices of different nodes whose devices differ only in what identifies them become
`Replica`s of one shape, so questions about ten thousand nodes of one kind are answered once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from dra_driver.allocation.capacity import Replica, ReplicaShape, text_without_attributes
from dra_driver.base.errors import DriverError
from dra_driver.base.text.json_text import SharedValues
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.tools.console.board import Board
from dra_driver.tools.console.pages_of_claims import LeftOut, key_of
from dra_driver.tools.world.access import UnseenObjects
from dra_driver.tools.world.shapes import ShapeChecker

# Updates for the board: what the watches of a cluster report, as messages from the console to the worker.


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page of the list of one namespace, or of all ("").

    `objects` is JSON, from which the worker makes its own objects.
    """

    kind: str
    objects: bytes
    is_first: bool
    is_last: bool
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """An object that was added or modified, or is gone."""

    kind: str
    wire: Wire
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class KindUnreadable:
    """Objects that may not be read."""

    unseen: UnseenObjects


@dataclass(frozen=True, slots=True)
class VersionRead:
    """The version of the cluster."""

    kubernetes: str


BoardUpdate = PageRead | ObjectChanged | KindUnreadable | VersionRead


_IDENTITIES = frozenset({"uuid", "parentUUID", "nvlinkDomain", "serial", "uniqueID"})


class AlikeSlices:
    """The shapes of the slices of one list; a node has one slice of each shape."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, tuple[ReplicaShape, dict[str, list[DeviceWire]]]] = {}

    def fold(self, wire: Wire) -> Wire:
        """Return a slice with replicas if it is of one node; any other slice is returned as it is."""
        spec = wire["spec"]
        node, devices = spec.get("nodeName"), spec.get("devices")
        if not node or not devices or spec.get("perDeviceNodeSelection"):
            return wire
        key = spec["driver"], tuple(_look(device) for device in devices)
        if key not in self._shapes:
            own: dict[str, list[DeviceWire]] = {}
            varying = {name for device in devices for name in device.get("attributes") or () if _identifies(name)}
            shape = ReplicaShape(spec["driver"], devices, varying, own.__getitem__, is_simulated=False)
            self._shapes[key] = shape, own
        shape, own = self._shapes[key]
        if node in own:
            return wire
        own[node] = devices
        return {**wire, "spec": {**spec, "devices": Replica(shape, node)}}


def _look(device: DeviceWire) -> Hashable:
    """Return everything that the devices of alike slices have in common."""
    attributes: dict[str, Any] = device.get("attributes") or {}
    common = [(name, repr(value)) for name, value in attributes.items() if not _identifies(name)]
    identities = [name for name in attributes if _identifies(name)]
    return device["name"], tuple(common), tuple(identities), text_without_attributes(device)


def _identifies(name: str) -> bool:
    return name.rpartition("/")[2] in _IDENTITIES


class UpdateApplier:
    """Applies updates to a board. Parts that many slices have in common are kept in memory once."""

    def __init__(self) -> None:
        self._values, self._alike = SharedValues(), AlikeSlices()
        self._checker = ShapeChecker()
        self._left_out = LeftOut()

    def apply(self, board: Board, update: BoardUpdate) -> None:
        """Apply one update to the board."""
        match update:
            case PageRead(kind, _, is_first, is_last, namespace):
                board.page(kind, self._objects(update), is_first=is_first, is_last=is_last, namespace=namespace)
                board.mark_left_out(kind, self._left_out.count(kind))
            case ObjectChanged(kind, wire, is_gone):
                self._change(board, kind, wire, is_gone=is_gone)
                board.mark_left_out(kind, self._left_out.count(kind))
            case KindUnreadable(unseen):
                board.mark_unreadable(unseen)
            case VersionRead(kubernetes):
                board.set_version(kubernetes)

    def _change(self, board: Board, kind: str, wire: Wire, *, is_gone: bool) -> None:
        key = key_of(wire)
        if key is None:
            if not is_gone:
                self._left_out.add(kind, "", None)
            return
        self._left_out.discard(kind, key)
        if not is_gone and self._has_shape(kind, wire):
            board.change(kind, wire)
            return
        board.delete(kind, wire)
        if not is_gone:
            self._left_out.add(kind, key[0], key)

    def _objects(self, page: PageRead) -> list[Wire]:
        if page.is_first:
            self._left_out.begin_list(page.kind, page.namespace)
        kept = []
        for wire in json.loads(page.objects)["items"]:
            self._values.share(wire)
            key = key_of(wire)
            if key is not None and self._has_shape(page.kind, wire):
                kept.append(wire)
            else:
                self._left_out.add(page.kind, page.namespace, key)
        return self._folded(kept, is_first=page.is_first) if page.kind == "ResourceSlice" else kept

    def _folded(self, slices: list[Wire], *, is_first: bool) -> list[Wire]:
        if is_first:
            self._alike = AlikeSlices()  # a list has each slice once
        return [self._alike.fold(wire) for wire in slices]

    def _has_shape(self, kind: str, wire: Wire) -> bool:
        try:
            self._checker.check(kind, wire, "cluster")
        except DriverError:
            return False
        return True
