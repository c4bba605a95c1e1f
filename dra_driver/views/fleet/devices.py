"""The devices of a fleet, each with its driver and its node; fleets of simulated profiles and of this node's hardware.

In: profile names, a hardware port. Out: a `Fleet`. That of ResourceSlices is read by `published_fleet`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra_driver.allocation.pools.replicas import ReplicaShape
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.model.wire import DeviceWire

if TYPE_CHECKING:
    from dra_driver.views.fleet.profile_nodes import FleetOffer


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """One device as it is published, with its node, driver and pool."""

    node: str
    driver: str
    pool: str
    wire: DeviceWire

    @property
    def name(self) -> str:
        """The name of the device in its pool."""
        return str(self.wire.get("name") or "?")


@dataclass(frozen=True, slots=True)
class Repeat:
    """Further nodes with the same devices as a node of the fleet (`node`)."""

    node: str
    names: tuple[str, ...]
    shapes: tuple[ReplicaShape, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """All devices and their origin. `notes` are facts about the fleet for the user to read.

    `repeats` are nodes with the same devices as a node of the fleet; their devices are not in `devices`.
    """

    devices: tuple[FleetDevice, ...] = ()
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    def __add__(self, other: Fleet) -> Fleet:
        if (self.repeats or other.repeats) and not set(self.nodes).isdisjoint(other.nodes):
            # One fleet adds devices to a node of the other, and the nodes that repeat this node do not have them.
            return self.unfolded() + other.unfolded()
        return Fleet(
            self.devices + other.devices,
            self.sources + other.sources,
            self.notes + other.notes,
            self.repeats + other.repeats,
        )

    @property
    def like(self) -> dict[str, tuple[str, ...]]:
        """The names of further nodes, by the node whose devices they repeat."""
        return {repeat.node: repeat.names for repeat in self.repeats}

    @property
    def size(self) -> int:
        """The number of devices, including those of repeated nodes."""
        return len(self.devices) + sum(
            len(repeat.names) * len(shape.wires) for repeat in self.repeats for shape in repeat.shapes
        )

    @property
    def node_count(self) -> int:
        """The number of nodes, including repeated ones."""
        return len(self.nodes) + sum(len(repeat.names) for repeat in self.repeats)

    def unfolded(self) -> Fleet:
        """Return the same fleet with the devices of every node in `devices`, and without repeats."""
        if not self.repeats:
            return self
        rows: dict[str, list[FleetDevice]] = {}
        for device in self.devices:
            rows.setdefault(device.node, []).append(device)
        for repeat in self.repeats:
            rows[repeat.node] += [one for name in repeat.names for one in _replicas(repeat.shapes, name)]
        devices = tuple(device for row in rows.values() for device in row)
        return Fleet(devices, self.sources, self.notes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that have devices here, in the order of their devices."""
        return tuple(dict.fromkeys(device.node for device in self.devices))

    @property
    def drivers(self) -> tuple[str, ...]:
        """All drivers, in the order of their devices."""
        return tuple(dict.fromkeys(device.driver for device in self.devices))

    def pairs(self) -> list[tuple[DeviceWire, str]]:
        """Return the devices with their drivers, in the form that engines expect."""
        return [(device.wire, device.driver) for device in self.devices]


def fleet_of_profiles(given: Iterable[str], fleet: Fleet, offer: FleetOffer | None = None) -> Fleet:
    """Return a fleet with simulated nodes added, given as NAME or NAME=COUNT, under names that no node has yet.

    Raises: InputError, UsageError.
    """
    from dra_driver.views.fleet.profile_nodes import read_count

    for name, count in map(read_count, given):
        taken = {*fleet.nodes, *(other for one in fleet.repeats for other in one.names)}
        fleet += fleet_of_profile(name, count, taken, offer)
    return fleet


def fleet_of_profile(
    name_or_path: str, count: int = 1, taken: Collection[str] = (), offer: FleetOffer | None = None
) -> Fleet:
    """Return what nodes of a profile would publish, including other drivers' devices; further nodes are repeats.

    No node gets a name that is in `taken`. Without an offer, only the partitions that exist on the hardware are
    published. Raises: InputError.
    """
    from dra_driver.views.fleet.profile_nodes import EXISTING_PARTITIONS, ProfileNodes

    simulated = ProfileNodes(name_or_path, offer or EXISTING_PARTITIONS)
    first, *further = simulated.free_names(max(count, 1), taken)
    devices = tuple(_replicas(simulated.shapes, first)) if count else ()
    repeats = (Repeat(first, tuple(further), simulated.shapes),) if further and devices else ()
    times = f"{count:,} of " if count > 1 else ""
    return Fleet(devices, (f"{times}profile {name_or_path}",), simulated.notes, repeats)


def _replicas(shapes: Iterable[ReplicaShape], node: str) -> Iterator[FleetDevice]:
    for shape in shapes:
        for wire in shape.on(node):
            yield FleetDevice(node, shape.driver, node, wire)


def fleet_of_hardware(
    hardware: Hardware, node: str, driver: str, source: str, sharing: SharingRules = NOTHING_SHARED
) -> Fleet:
    """Return what a node with this hardware would publish. Raises: HardwareError, NodeError."""
    from dra_driver.inventory.build import build_inventory
    from dra_driver.inventory.wire import device_wire

    try:
        inventory = build_inventory(hardware.discover(), sharing=sharing)
    finally:
        hardware.close()
    devices = tuple(FleetDevice(node, driver, node, device_wire(device)) for device in inventory.devices)
    notes = tuple(f"{node}: {problem.subject}: {problem.message}" for problem in inventory.problems)
    if inventory.waiting_for:
        notes = (*notes, f"{node}: nothing is published: waiting for {inventory.waiting_for}")
    return Fleet(devices, (source,), notes)
