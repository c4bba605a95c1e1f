"""Describing: what is published of each device of a node, and why some of it can't be.

In: the vendor and versions of the facts, and the facts behind a device. Out: the device, and a problem for each value
that the API server would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.published.rows import (
    COMPUTE,
    MAX_MEMORY_SLICES,
    MEMORY_SLICE,
    Fact,
    FoundDevice,
    Published,
    ValueKind,
)
from dra_driver.hardware.vendors import load_vendor
from dra_driver.inventory.device import AttributeValue, Device
from dra_driver.model import limits
from dra_driver.model.semver import Semver, SemverError
from dra_driver.model.shares import DeviceType, Share
from dra_driver.model.vendors import registered_or_default

Rows = Mapping[DeviceType, tuple[Published, ...]]

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class CommonFacts:
    """What the devices of a node have in common: whose they are, and the versions of the driver and of its runtime."""

    vendor: str
    driver_version: str | None
    runtime_version: str | None


class Describer:
    """Turns facts into the devices of one node. `problems` collects what can't be published, in order."""

    def __init__(self, common: CommonFacts | Facts) -> None:
        self.common = CommonFacts(common.vendor, common.driver_version, common.runtime_version)
        self.problems: list[Problem] = []
        self._rows = rows_of(common.vendor)
        self._versions = common.driver_version, common.runtime_version

    def describe(
        self, name: str, gpu: GpuFacts, partition: PartitionFacts | None = None, *, has_slices: bool = False
    ) -> Device:
        """Return a GPU or a partition of it as a device. With `has_slices` it has a capacity for each memory slice."""
        return self._device(name, FoundDevice(gpu, partition, *self._versions), has_slices=has_slices)

    def describe_share(self, name: str, of: Device, share: Share, replicas: int | None) -> Device:
        """Return a share as a device; `replicas` is how many share `of`, None if shares are not counted so."""
        found = FoundDevice(of.gpu, of.partition, *self._versions, share, replicas)
        return replace(self._device(name, found), share=share, placement=of.placement)

    def describe_passed(self, name: str, gpu: GpuFacts) -> Device:
        """Return a GPU as a device for virtual machines."""
        return self._device(name, FoundDevice(gpu, None, *self._versions, is_passed=True))

    def report(self, code: str, device: Device, message: str) -> None:
        """Report a problem of a device; `code` is its code below "inventory."."""
        self._report(code, device.gpu, device.partition, message)

    def _device(self, name: str, found: FoundDevice, *, has_slices: bool = False) -> Device:
        attributes: dict[str, AttributeValue] = {}
        capacity: dict[str, int] = {}
        for row in self._rows[found.type]:
            value = row.read(found)
            if value is None:
                continue
            fault = _unfit(row.kind, value)
            if fault:
                self._report("value-unfit", found.gpu, found.partition, f"{row.name} is left out: {fault}")
            elif row.kind is ValueKind.QUANTITY:
                capacity[row.name] = int(value)
            else:
                attributes[row.name] = ("version", str(value)) if row.kind is ValueKind.VERSION else value
        if found.partition is not None and has_slices:
            fault = _add_memory_slices(capacity, found.partition, len(attributes) + len(capacity))
            if fault:
                self._report("too-many-values", found.gpu, found.partition, fault)
        return Device(name, found.type, attributes, capacity, found.gpu, found.partition)

    def _report(self, code: str, gpu: GpuFacts, partition: PartitionFacts | None, message: str) -> None:
        subject = gpu.pci_address if partition is None else partition.uuid
        self.problems.append(Problem(f"inventory.{code}", subject, message))


def _add_memory_slices(capacity: dict[str, int], partition: PartitionFacts, taken: int) -> str:
    """Add a capacity of 1 for each memory slice while there is room; return what did not fit, or "" if all did."""
    if partition.start < 0:
        return f"{MEMORY_SLICE}s are left out: the partition starts at slice {partition.start}"
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES - taken
    slices = range(partition.start, partition.start + partition.size)
    capacity.update({f"{MEMORY_SLICE}{index}": 1 for index in slices[:room]})
    if len(slices) <= room:
        return ""
    return f"{MEMORY_SLICE}{slices[room]} and above are left out: a device can only have 32 values"


def _unfit(kind: ValueKind, value: Fact) -> str:
    """Return why the API server would refuse a value, or "" if it would accept it.

    Source: Kubernetes API resource/v1 DeviceAttribute, DeviceCapacity.
    """
    if kind is ValueKind.BOOL:
        return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
    if kind in {ValueKind.INT, ValueKind.QUANTITY}:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is not a whole number"
        minimum = 0 if kind is ValueKind.QUANTITY else _INT64_MIN
        return "" if minimum <= value <= _INT64_MAX else f"{value} is out of range"
    if not isinstance(value, str):
        return f"{value!r} is not a text"
    return _unfit_text(kind, value)


@lru_cache(maxsize=1024)  # the devices of a node repeat each other's values, and every change builds all of them
def _unfit_text(kind: ValueKind, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{text!r} is not Unicode text"
    if not text:
        return "it is empty"
    if size > limits.ATTRIBUTE_STRING_BYTES:
        return f"{text!r} has {size} bytes; at most {limits.ATTRIBUTE_STRING_BYTES} are allowed"
    if kind is ValueKind.VERSION:
        try:
            Semver.parse(text)
        except SemverError as error:
            return f"{text!r} is not a semantic version: {error}"
    return ""


@cache
def rows_of(vendor: str) -> Rows:
    """Return the rows that each type of a vendor's devices carries. Simulated machines have those of the default."""
    rows = load_vendor(registered_or_default(vendor).name).rows
    return {kind: carried(rows, kind) for kind in DeviceType}


def carried(table: Iterable[Published], device_type: DeviceType) -> tuple[Published, ...]:
    """Return the rows that devices of a type carry, in the order of the table.

    These are all names without a rank and then, with room kept for the memory slices of a partition, as many of our own
    by rank as fit.

    Source: Kubernetes API resource/v1 ResourceSliceMaxAttributesAndCapacitiesPerDevice.
    """
    rows = [row for row in table if device_type in row.types]
    # Shares of one device are counted in one way only: no device has both percent of compute and a number of replicas.
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES - sum(row.rank == 0 and row.name != COMPUTE for row in rows)
    if device_type is DeviceType.MIG:
        room -= MAX_MEMORY_SLICES
    ours = sorted((row for row in rows if row.rank), key=lambda row: row.rank)[: max(room, 0)]
    return tuple(row for row in rows if row.rank == 0 or row in ours)
