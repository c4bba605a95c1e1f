"""Simulated nodes: any number of nodes of one profile, which is read once.

In: a profile's name or file. Out: node names, and the devices of each node by driver. Only identifiers, which are made
from the node's name, differ between nodes; all nodes share one copy of everything else.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.allocation.capacity import ReplicaShape, parse
from dra_driver.base.errors import UsageError
from dra_driver.base.names import NVIDIA_DRIVER, gpu_of_device
from dra_driver.base.quantity import Quantity
from dra_driver.base.wire import DeviceWire, Tenants, Wire
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.simulated import load_profile
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.devices.rules import NOTHING_SHARED, SharingRules
from dra_driver.node.slices.layout import lay_out
from dra_driver.tools.world.fields import counted, plural

MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class FleetOffer:
    """How simulated nodes offer partitions: as the agent does with a Kubernetes version and its gates.

    `minor` is the minor version of the API server, on which the layout of slices depends; 0 stands for the newest.
    `words` say the same for people. `is_by_default`: neither --mig nor --gate decided it, but the version.
    """

    is_on_demand: bool = False
    minor: int = 0
    words: str = ""
    is_by_default: bool = False


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
        self.shapes = tuple(slice_.shape for slice_ in self.slices if slice_.shape is not None and slice_.shape.wires)

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


# Facts about a published device for people: its product, its profile, and its memory in one unit everywhere.


def string_of(wire: Wire, name: str) -> str | None:
    """Return an attribute that is a string; None if the device has none of this name."""
    for key, value in (wire.get("attributes") or {}).items():
        if key.rpartition("/")[2] == name and isinstance(value, dict) and isinstance(value.get("string"), str):
            return str(value["string"])
    return None


def attribute_of(wire: Wire, name: str) -> str:
    """Return an attribute of any type as text, lists joined by commas; "-" if the device has none of this name."""
    for key, value in (wire.get("attributes") or {}).items():
        if key.rpartition("/")[2] == name and isinstance(value, dict):
            found = next(iter(value.values()), "-")
            return ", ".join(map(str, found)) if isinstance(found, list) else str(found)
    return "-"


def profile_of(wire: Wire) -> str:
    """Return the profile of a MIG partition, "" for any other device."""
    return string_of(wire, "profile") or ""


def part_of(wire: Wire) -> str:
    """Return the profile of a partition of any kind; "" for a device that is not a partition.

    A partition that the hardware itself makes has the partitioning mode of its GPU, or "partition" if that is unknown.
    """
    if (string_of(wire, "type") or "").endswith("-partition"):
        return string_of(wire, "partitionProfile") or "partition"
    return profile_of(wire)


def memory_of(wire: Wire) -> str | None:
    """Return the published quantity of memory, as selectors see it, such as "81559Mi"; None if there is none."""
    for key, value in (wire.get("capacity") or {}).items():
        if key.rpartition("/")[2] == "memory" and isinstance(value, dict):
            return str(value.get("value"))
    return None


def memory_text(quantity: str) -> str:
    """Return an amount of memory in GiB, followed by the quantity to use in a selector.

    >>> memory_text("81559Mi")
    '79.6 GiB (81559Mi)'
    """
    return Quantity.of(int(parse(quantity).value), binary=True).readable


# Published devices as rows of a table, in which all placements of a GPU share one row.

TITLES = ("device", "type", "product", "memory", "NUMA", "compute", "fabric domain", "UUID")
NUMBERS = frozenset({"memory", "NUMA"})
FEW_TITLES = 5  # how many of these a narrow table shows


def device_rows(devices: Sequence[DeviceWire], *, is_wide: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each device, GPU by GPU; without `is_wide`, the placements of a GPU are counted in one row."""
    if is_wide:
        yield from map(_cells, devices)
        return
    for gpu in _by_gpu(devices).values():
        placements = [one for one in gpu if is_placement(one)]
        yield from (_cells(one)[:FEW_TITLES] for one in gpu if not is_placement(one))
        if placements:
            profiles = plural(len({profile_of(placement) for placement in placements}), "profile")
            yield f"  {plural(len(placements), 'placement')}", "mig", f"{profiles}, on demand", "", ""


def placement_lines(devices: Sequence[DeviceWire]) -> list[str]:
    """Return which placements GPUs have, in one line for all GPUs with the same placements."""
    alike: dict[tuple[tuple[str, int], ...], int] = {}
    for gpu in _by_gpu(devices).values():
        counts = Counter(f"{profile_of(one)} ({memory_of(one)})" for one in gpu if is_placement(one))
        if counts:
            key = tuple(counts.items())
            alike[key] = alike.get(key, 0) + 1
    return [
        f"{plural(gpus, 'GPU')}, {plural(sum(count for _, count in counts), 'placement')} each: {counted(counts)}"
        for counts, gpus in alike.items()
    ]


def is_placement(wire: DeviceWire) -> bool:
    """Return whether a device is a partition that is made when a claim needs it."""
    return bool(wire.get("consumesCounters")) and bool(profile_of(wire))


def _by_gpu(devices: Sequence[DeviceWire]) -> dict[str, list[DeviceWire]]:
    found: dict[str, list[DeviceWire]] = {}
    for device in devices:
        found.setdefault(gpu_of_device(str(device["name"])), []).append(device)
    return found


def _compute_of(wire: DeviceWire) -> str:
    """Return the compute capability of NVIDIA's devices, the number of compute units of AMD's."""
    capacities = {key.rpartition("/")[2]: value for key, value in (wire.get("capacity") or {}).items()}
    units = capacities.get("computeUnits") or {}
    return f"{units['value']} CU" if "value" in units else attribute_of(wire, "cudaComputeCapability")


def _cells(wire: DeviceWire) -> tuple[str, ...]:
    memory = memory_of(wire)
    product = string_of(wire, "productName") or string_of(wire, "model") or "?"
    return (
        str(wire["name"]),
        string_of(wire, "type") or "-",
        f"{product} {profile_of(wire)}".rstrip(),
        memory_text(memory) if memory else "-",
        attribute_of(wire, "numaNode"),
        _compute_of(wire),
        string_of(wire, "nvlinkDomain") or attribute_of(wire, "fabricDomain"),
        attribute_of(wire, "uuid"),
    )


# The settings of a node that decide what it offers, under the names of the agent's flags.


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings chosen by the flags."""

    node: str
    driver: str
    hardware: Hardware
    device_plugins: Path | None  # the kubelet's folder of device plugins; None to ignore them
    registrar: Path  # the kubelet's folder of registration sockets
    data: Path  # the agent's own folder
    cdi: Path
    roots: Roots
    is_mig_dynamic: bool
    has_all_profiles: bool
    sharing_config: Path | None = None
    mps_tenants: Tenants = Tenants.ANY
    passthrough: Path | None = None  # the file that names GPUs for virtual machines

    def rules(self) -> SharingRules:
        """Read the sharing rules; the node's labels stay unknown. Raises: InputError with every fault."""
        if self.sharing_config is None:
            return NOTHING_SHARED
        from dra_driver.node.claims.config_schema import read_sharing_config

        rules = read_sharing_config(self.sharing_config, self.mps_tenants)
        return replace(rules, node=self.node, labels=None if rules.need_labels else {})
