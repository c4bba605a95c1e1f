"""Simulated nodes: any number of nodes of one profile, which is read once.

In: a profile's name or file. Out: node names, and the devices of each node by driver. Only some attributes of the
devices depend on the node (identifiers made from its name), so all nodes share one copy of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_driver.allocation.replicas import Shape
from dra_driver.hardware.simulated import load_profile
from dra_driver.hardware.simulated.hardware import facts_of
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.device import Inventory
from dra_driver.inventory.wire import device_wire
from dra_driver.model.errors import UsageError
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.model.wire import DeviceWire

MOST_NODES = 100_000


class ProfileNodes:
    """The nodes of one profile. Raises: InputError for an invalid profile."""

    def __init__(self, name_or_path: str) -> None:
        self.name = name_or_path
        self._profile = load_profile(name_or_path)
        first, other = self.name_of(1), f"{self.name_of(1)}-other"
        inventory = self._inventory(first)
        self.notes = tuple(f"{first}: {problem.subject}: {problem.message}" for problem in inventory.problems)
        if inventory.waiting_for:
            self.notes += (f"{first}: nothing is published: waiting for {inventory.waiting_for}",)
        own = [device_wire(device) for device in inventory.devices]
        shapes = [Shape(NVIDIA_DRIVER, own, set(_differing(own, self._own(other))), self._own)]
        shapes += [_constant(row.driver, row.devices) for row in self._profile.foreign]
        self.shapes = tuple(shape for shape in shapes if shape.wires)

    def name_of(self, number: int) -> str:
        """Return the name of the n-th node."""
        return self._profile.node_name_of(number)

    def _inventory(self, node: str) -> Inventory:
        return build_inventory(facts_of(self._profile, node))

    def _own(self, node: str) -> Sequence[DeviceWire]:
        return [device_wire(device) for device in self._inventory(node).devices]


def _constant(driver: str, devices: Sequence[DeviceWire]) -> Shape:
    return Shape(driver, devices, (), lambda _: devices)


def read_count(text: str) -> tuple[str, int]:
    """Read PROFILE or PROFILE=COUNT. Raises: UsageError."""
    name, equals, count = text.rpartition("=")
    if not equals:
        return text, 1
    if not (count.isascii() and count.isdigit() and len(count) <= len(str(MOST_NODES))):
        raise UsageError("count", f"{text!r} is not PROFILE or PROFILE=COUNT, with a count of at most {MOST_NODES:,}")
    if int(count) > MOST_NODES:
        raise UsageError("count", f"{text!r}: at most {MOST_NODES:,} nodes of a profile are simulated")
    return name, int(count)


def _differing(one: Sequence[DeviceWire], other: Sequence[DeviceWire]) -> Iterator[str]:
    """Return the attributes that differ between two nodes."""
    for first, second in zip(one, other, strict=True):
        for name, value in (first.get("attributes") or {}).items():
            if second["attributes"][name] != value:
                yield name
