"""Alike slices: ResourceSlices of different nodes whose devices differ only in what identifies them.

In: the slices of one list, checked. Out: the same slices. The devices of those that are alike are `Replica`s of one
shape, so questions about ten thousand nodes of one kind are answered once for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dra_driver.allocation.pools.replicas import Replica, ReplicaShape, text_without_attributes
from dra_driver.model.wire import DeviceWire, Wire

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
