"""Simulated nodes: any number of nodes of one profile, which is read once.

In: a profile's name or file. Out: node names, and the devices of each node by driver. Only identifiers, which are made
from the node's name, differ between nodes; all nodes share one copy of everything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.allocation.pools.replicas import ReplicaShape
from dra_driver.controller.layout import lay_out
from dra_driver.hardware.simulated import load_profile
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.mig.partitions import MigPolicy
from dra_driver.inventory.offering import Inventory
from dra_driver.inventory.wire import counter_set_wire, device_wire
from dra_driver.model.errors import UsageError
from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.model.wire import DeviceWire, Wire

MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class FleetOffer:
    """How simulated nodes offer partitions: as the agent does with a Kubernetes version and its gates.

    `minor` is the minor version of the API server, on which the layout of slices depends; 0 stands for the newest.
    `words` say the same for people.
    """

    is_on_demand: bool = False
    minor: int = 0
    words: str = ""


EXISTING_PARTITIONS = FleetOffer()


@dataclass(frozen=True, slots=True)
class SliceShape:
    """One slice that every node of the profile has: its devices, its counter sets, or both."""

    driver: str
    shape: ReplicaShape | None
    counter_sets: tuple[Wire, ...] = ()


class ProfileNodes:
    """The nodes of one profile. Raises: InputError for an invalid profile."""

    def __init__(self, name_or_path: str, offer: FleetOffer = EXISTING_PARTITIONS) -> None:
        self.name = name_or_path
        self._profile = load_profile(name_or_path)
        self._policy = MigPolicy(is_dynamic=offer.is_on_demand)
        self._latest: tuple[str, dict[str, DeviceWire]] = ("", {})
        first, other = self.name_of(1), f"{self.name_of(1)}-other"
        inventory = self._inventory(first)
        self.notes = tuple(f"{first}: {problem.subject}: {problem.message}" for problem in inventory.problems)
        unknown = sum("resource.kubernetes.io/numaNode" not in device.attributes for device in inventory.devices)
        if unknown:
            self.notes += (f"{self.name}: the profile does not name the NUMA nodes",)
        if inventory.waiting_for:
            self.notes += (f"{first}: nothing is published: waiting for {inventory.waiting_for}",)
        own = [device_wire(device) for device in inventory.devices]
        sets = [counter_set_wire(name, counters) for name, counters in inventory.offering.counter_sets.items()]
        varying = set(_differing(own, list(self._own(other).values())))
        self.slices = tuple(self._slices(own, sets, varying, offer.minor))
        self.slices += tuple(
            SliceShape(row.driver, _constant(row.driver, row.devices)) for row in self._profile.foreign
        )
        self.shapes = tuple(one.shape for one in self.slices if one.shape is not None and one.shape.wires)

    def name_of(self, number: int) -> str:
        """Return the name of the n-th node."""
        return self._profile.node_name_of(number)

    def free_names(self, count: int, taken: Collection[str]) -> list[str]:
        """Return the first `count` names of nodes that are not in `taken`."""
        names = (self.name_of(number) for number in itertools.count(1))
        return list(itertools.islice((name for name in names if name not in taken), count))

    def _slices(
        self, devices: Sequence[DeviceWire], sets: Sequence[Wire], varying: set[str], minor: int
    ) -> Iterator[SliceShape]:
        """Yield the slices of a node: one, or as many as the agent makes if there are counters."""
        if not sets:
            if devices:
                yield SliceShape(NVIDIA_DRIVER, ReplicaShape(NVIDIA_DRIVER, devices, varying, self._maker(devices)))
            return
        node = self.name_of(1)
        for spec in lay_out(devices, pool=node, node=node, driver=NVIDIA_DRIVER, server_minor=minor, counter_sets=sets):
            shape = (
                ReplicaShape(NVIDIA_DRIVER, spec.devices, varying, self._maker(spec.devices)) if spec.devices else None
            )
            yield SliceShape(NVIDIA_DRIVER, shape, spec.counter_sets)

    def _maker(self, devices: Sequence[DeviceWire]) -> Callable[[str], Sequence[DeviceWire]]:
        names = [device["name"] for device in devices]

        def make(node: str) -> Sequence[DeviceWire]:
            known = self._own(node)
            return [known[name] for name in names]

        return make

    def _inventory(self, node: str) -> Inventory:
        return build_inventory(facts_of(self._profile, node), self._policy)

    def _own(self, node: str) -> dict[str, DeviceWire]:
        """Return the devices of a node by name; those of the latest node are cached."""
        if self._latest[0] != node:
            wires = map(device_wire, self._inventory(node).devices)
            self._latest = (node, {wire["name"]: wire for wire in wires})
        return self._latest[1]


def _constant(driver: str, devices: Sequence[DeviceWire]) -> ReplicaShape:
    return ReplicaShape(driver, devices, (), lambda _: devices)


def read_count(text: str) -> tuple[str, int]:
    """Read PROFILE or PROFILE=COUNT. Raises: UsageError."""
    name, equals, count = text.rpartition("=")
    if not equals:
        return text, 1
    is_number = count.isascii() and count.isdigit() and len(count) <= len(str(MAX_NODES))
    if not (is_number and 1 <= int(count) <= MAX_NODES):
        raise UsageError("count", f"{text!r} is not PROFILE or PROFILE=COUNT, with a count from 1 to {MAX_NODES:,}")
    return name, int(count)


def _differing(one: Sequence[DeviceWire], other: Sequence[DeviceWire]) -> Iterator[str]:
    """Return the attributes that differ between two nodes."""
    for first, second in zip(one, other, strict=True):
        for name, value in (first.get("attributes") or {}).items():
            if second["attributes"][name] != value:
                yield name
