"""Replicas: the devices of similar nodes, stored only once.

In: the devices of one node, and a function that makes those of another node. Out: a `Replica` for each node, which
takes the place of the list in `spec.devices` and makes its devices when they are read. What the nodes have in common
(their `ReplicaShape`) is determined once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from dra_driver.model.wire import DeviceWire
from dra_driver.selectors.readset import Read

_COMPARED_SEPARATELY = frozenset({"name", "attributes"})


@dataclass(frozen=True, slots=True)
class DeviceListFacts:
    """What the allocator must know about a list of devices before it reads any of them."""

    has_binding: bool
    consumes: bool
    has_groups: bool  # compatibilityGroups
    has_duplicates: bool


def facts_of(wires: Sequence[DeviceWire]) -> DeviceListFacts:
    """Collect the facts about a list of devices; the replicas of one shape share theirs."""
    if isinstance(wires, Replica):
        return wires.shape.facts
    has_binding = consumes = has_groups = False
    for device in wires:
        if "bindingConditions" in device or "consumesCounters" in device:
            has_binding = has_binding or device.get("bindingConditions") is not None
            taken = device.get("consumesCounters") or ()
            consumes = consumes or bool(taken)
            has_groups = has_groups or any(one.get("compatibilityGroups") for one in taken)
    has_duplicates = len({device["name"] for device in wires}) < len(wires)
    return DeviceListFacts(has_binding, consumes, has_groups, has_duplicates)


class ReplicaShape:
    """The devices of one driver on similar nodes.

    Args:
        driver: the name of the driver.
        wires: the devices of one of these nodes.
        varying: names of the attributes whose values differ between the nodes; nothing else may differ.
        make: returns the devices of a node, given its name.
        is_simulated: whether no slice was ever published with these devices.
    """

    __slots__ = ("_facts", "_made", "driver", "is_simulated", "make", "varying", "wires")

    def __init__(
        self,
        driver: str,
        wires: Sequence[DeviceWire],
        varying: Iterable[str],
        make: Callable[[str], Sequence[DeviceWire]],
        *,
        is_simulated: bool = True,
    ) -> None:
        self.driver = driver
        self.wires = wires
        self.varying = frozenset(name if "/" in name else f"{driver}/{name}" for name in varying)
        self.make = make
        self.is_simulated = is_simulated
        self._facts: DeviceListFacts | None = None
        self._made: tuple[str, Sequence[DeviceWire]] = ("", ())

    @property
    def facts(self) -> DeviceListFacts:
        """What the allocator must know about the devices of each of the nodes."""
        if self._facts is None:
            self._facts = facts_of(self.wires)
        return self._facts

    def on(self, node: str) -> Sequence[DeviceWire]:
        """Return the devices of one node; only those of the latest node are kept."""
        if self._made[0] != node:
            self._made = (node, self.make(node))
        return self._made[1]

    def varies_in(self, reads: Iterable[Read]) -> bool:
        """Return whether anything that is read differs from node to node."""
        return any(_touches(read, name) for read in reads if read.field == "attributes" for name in self.varying)


class Replica(Sequence[DeviceWire]):
    """The devices of one node that has a given shape."""

    __slots__ = ("node", "shape")

    def __init__(self, shape: ReplicaShape, node: str) -> None:
        self.shape = shape
        self.node = node

    def __len__(self) -> int:
        return len(self.shape.wires)

    @overload
    def __getitem__(self, index: int) -> DeviceWire: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DeviceWire]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.shape.on(self.node)[index]


def shared_wires(wires: Sequence[DeviceWire]) -> Sequence[DeviceWire]:
    """Return devices that differ from the given ones in values of attributes at most.

    Of a replica, they are those of its shape, so that no device is made.
    """
    return wires.shape.wires if isinstance(wires, Replica) else wires


def names_of(wires: Sequence[DeviceWire]) -> list[str]:
    """Return the names of devices; replicas have them in common, so none is made."""
    return [wire["name"] for wire in shared_wires(wires)]


def text_without_attributes(wire: DeviceWire) -> str:
    """Return everything in a device except its name and attributes as text, for comparison with other devices."""
    return repr([(key, value) for key, value in wire.items() if key not in _COMPARED_SEPARATELY])


def _touches(read: Read, name: str) -> bool:
    domain, _, short = name.partition("/")
    return read.domain in {None, domain} and read.name in {None, short}
