"""Describing: what is published of each device of a node, and why some of it can't be.

In: the vendor and versions of the facts, and the facts behind a device. Out: the device, and a problem for each value
that the API server would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path

from dra_driver.base import errors
from dra_driver.base.flags import VENDORS, registered_or_default
from dra_driver.base.quantity import Quantity
from dra_driver.base.versions import Semver, SemverError
from dra_driver.base.wire import DeviceType, DeviceWire, Share, Wire
from dra_driver.hardware.facts import Facts, GpuFacts, MigProfile, PartitionFacts, Problem
from dra_driver.hardware.vendors import (
    COMPUTE,
    MAX_MEMORY_SLICES,
    MEMORY_SLICE,
    Fact,
    FoundDevice,
    Owner,
    Published,
    ValueKind,
    Vendor,
    VendorClass,
    load_vendor,
)

# Device: what the inventory makes of the hardware's facts, and everything above it works with.

AttributeValue = bool | int | str | tuple[str, str]
"""A published value: a bool, int or string as it is, or a pair such as ("version", "9.0.0") for a semver."""

# The facts that a MIG profile and a partition of its shape have in common.
_COMMON_FACTS = (
    "multiprocessors",
    "copy_engines",
    "decoders",
    "encoders",
    "jpeg_engines",
    "ofa_engines",
    "memory_bytes",
)


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """A partition that Prepare creates: a profile of the GPU at a first memory slice."""

    profile: MigProfile
    start: int

    @property
    def slices(self) -> range:
        """Return the memory slices that the partition covers."""
        return range(self.start, self.start + self.profile.size)

    @property
    def expected_partition(self) -> PartitionFacts:
        """Return the facts of the partition that Prepare would create; it has no UUID and no instance ids yet."""
        shape = self.profile
        engines = {name: getattr(shape, name) for name in _COMMON_FACTS}
        return PartitionFacts("", shape.name, shape.gi_profile_id, -1, -1, self.start, shape.size, **engines)

    def is_at(self, partition: PartitionFacts) -> bool:
        """Return whether an existing partition is at this placement."""
        return (partition.gi_profile_id, partition.start) == (self.profile.gi_profile_id, self.start)


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How much of a capacity one share takes, in the capacity's base unit.

    `default` applies where a claim requests no amount. With a `minimum`, the requested amount is raised to it and
    rounded up to a multiple of `step` above it, to at most `maximum`; with `values`, only those amounts exist. With
    neither, a share takes exactly the requested amount.
    """

    default: int
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device as published.

    `attributes` and `capacity` are keyed by published name (names of our own domain without the domain). A version
    attribute is the pair ("version", text). Capacities are integers in base units (bytes, counts). `gpu` and
    `partition` are the facts behind the device, about which Prepare asks the hardware port. A device with a `placement`
    is a partition that Prepare creates; its `partition` is None unless it exists now. `counters` is what the device
    consumes of its `counter_set`, "" for none. A device with `policies`, one for each of its capacities, may be
    allocated many times.
    """

    name: str
    type: DeviceType
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    gpu: GpuFacts
    partition: PartitionFacts | None = None
    placement: MigPlacement | None = None
    counter_set: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    share: Share | None = None
    policies: Mapping[str, RequestPolicy] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """Return the partition's UUID; the GPU's for a GPU, and for a partition that does not exist now."""
        return self.partition.uuid if self.partition else self.gpu.uuid

    @property
    def shared_name(self) -> str:
        """Return the name of the physical device: that of the parent for a replica, the device's own otherwise."""
        return self.share.parent if self.share else self.name


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
    room = errors.DEVICE_ATTRIBUTES_AND_CAPACITIES - taken
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
    if size > errors.ATTRIBUTE_STRING_BYTES:
        return f"{text!r} has {size} bytes; at most {errors.ATTRIBUTE_STRING_BYTES} are allowed"
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
    room = errors.DEVICE_ATTRIBUTES_AND_CAPACITIES - sum(row.rank == 0 and row.name != COMPUTE for row in rows)
    if device_type is DeviceType.MIG:
        room -= MAX_MEMORY_SLICES
    ours = sorted((row for row in rows if row.rank), key=lambda row: row.rank)[: max(room, 0)]
    return tuple(row for row in rows if row.rank == 0 or row in ours)


# Reference: the attributes and capacities of every vendor's devices in pages for users, and their classes as files.

ROOT = Path(__file__).resolve().parents[3]
BEGIN, END = (f"<!-- Generated by `make docs`: {mark} -->\n" for mark in ("begin", "end"))


def files() -> Iterator[tuple[str, str]]:
    """Yield the path in the repository and the text of each file that is generated from what vendors declare."""
    for registered in VENDORS:
        vendor = load_vendor(registered.name)
        yield f"docs/{vendor.page.file}", render_page(vendor, rows_of(registered.name))
        for device_class in vendor.generated_classes:
            yield f"deviceclasses/{device_class.name}.yaml", render_class(device_class)
    yield "deploy/helm/vendors.yaml", render_vendors()


def render_page(vendor: Vendor, rows: Rows) -> str:
    """Return the vendor's page, with what it declares now between the marks."""
    shown = set().union(*rows.values())
    table = [row for row in (*vendor.rows, *vendor.page.more) if row in shown or row in vendor.page.more]
    parts = [
        _table("Attributes", vendor, rows, (row for row in table if row.kind is not ValueKind.QUANTITY)),
        _table("Capacities", vendor, rows, (row for row in table if row.kind is ValueKind.QUANTITY)),
        *([_closing(vendor, rows)] if vendor.page.closing else []),
    ]
    before, _, rest = (ROOT / "docs" / vendor.page.file).read_text().partition(BEGIN)
    return before + BEGIN + "\n".join(parts) + END + rest.partition(END)[2]


def _table(title: str, vendor: Vendor, rows: Rows, table: Iterable[Published]) -> str:
    lines = [
        f"### {title}",
        "",
        "| name | kind | unit | on | from | rank | since | meaning |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        owner = vendor.title if row.owner is Owner.VENDOR else row.owner
        values = (f"`{row.name}`", row.kind, row.unit, _carriers(row, rows), owner, row.rank or "", row.since)
        lines.append(f"| {' | '.join(map(str, values))} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def _carriers(row: Published, rows: Rows) -> str:
    """Return the types of devices that carry a row. A type without room for it is not among them."""
    types = [kind for kind in DeviceType if row in rows[kind]] or row.types
    return "all" if len(types) == sum(bool(carried) for carried in rows.values()) else ", ".join(types)


def _closing(vendor: Vendor, rows: Rows) -> str:
    counts = {kind.replace("-", "_"): sum(row.name != COMPUTE for row in carried) for kind, carried in rows.items()}
    return vendor.page.closing.format(**counts, slices=MAX_MEMORY_SLICES)


def render_vendors() -> str:
    """Return the chart's table: each vendor's driver, its classes, and the extended resource that pods may request.

    The classes of a vendor that generates none are all files of its driver's domain, which are written by hand.
    """
    rows = ["# Generated by `make docs` from what vendors declare (docs/new-vendor.md); edit that, not this file."]
    for one in VENDORS:
        made = load_vendor(one.name).generated_classes
        names = [each.name for each in made] or [f"*.{one.driver.partition('.')[2]}"]
        rows += [f"{one.name}:", f"  driver: {one.driver}", f'  classes: "{{{",".join(names)}}}"']
        rows += [f"  extendedResource: {each.extended_resource}" for each in made if each.extended_resource]
        rows += [f"  passthroughClass: {each.name}" for each in made if "vfio" in each.name]
    return "\n".join(rows) + "\n"


def render_class(declared: VendorClass) -> str:
    """Return the file of a DeviceClass."""
    notes = "\n".join(f"# {line}".rstrip() for line in declared.notes.rstrip().splitlines())
    return f"""{notes}
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {declared.name}
spec:
  selectors:
    - cel:
        expression: {declared.expression}
"""


if __name__ == "__main__":
    for path, text in files():
        (ROOT / path).write_text(text)


# Wire form of a device: an entry of `spec.devices` of a ResourceSlice.

_IN_BYTES = frozenset({"memory"})  # this name is used for a capacity and for a counter
_SHAPES, _VALUES = 256, 4096  # sizes of the caches; what does not fit is computed again


def device_wire(device: Device) -> DeviceWire:
    """Return the device in the form that the API accepts.

    >>> from dra_driver.hardware.facts import GpuFacts
    >>> from dra_driver.base.wire import DeviceType
    >>> gpu = GpuFacts(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=80 << 30)
    >>> device_wire(Device("gpu-0000-65-00-0", DeviceType.GPU, {"type": "gpu"}, {"memory": 80 << 30}, gpu))
    {'name': 'gpu-0000-65-00-0', 'attributes': {'type': {'string': 'gpu'}}, 'capacity': {'memory': {'value': '80Gi'}}}
    """
    wire: DeviceWire = {"name": device.name}
    if device.attributes:
        wire["attributes"] = {name: attribute_wire(value) for name, value in device.attributes.items()}
    if device.capacity:
        wire["capacity"] = _quantities(tuple(device.capacity.items()))
    if device.policies:
        wire["allowMultipleAllocations"] = True
        policies = {name: {"requestPolicy": _policy_wire(name, policy)} for name, policy in device.policies.items()}
        wire["capacity"] = {name: {**value, **policies.get(name, {})} for name, value in wire["capacity"].items()}
    if device.counter_set:
        counters = _quantities(tuple(device.counters.items()))
        wire["consumesCounters"] = [{"counterSet": device.counter_set, "counters": counters}]
    return wire


def counter_set_wire(name: str, counters: Mapping[str, int]) -> Wire:
    """Return a set of shared counters in the form that the API accepts.

    >>> counter_set_wire("gpu-a", {"memory-slice-0": 1})
    {'name': 'gpu-a', 'counters': {'memory-slice-0': {'value': '1'}}}
    """
    return {"name": name, "counters": _quantities(tuple(counters.items()))}


@lru_cache(_SHAPES)
def _quantities(values: tuple[tuple[str, int], ...]) -> Wire:
    return {name: {"value": quantity_text(name, value)} for name, value in values}


def _policy_wire(name: str, policy: RequestPolicy) -> Wire:
    wire: Wire = {"default": quantity_text(name, policy.default)}
    if policy.values:
        wire["validValues"] = [quantity_text(name, value) for value in policy.values]
    elif policy.minimum is not None:
        limits = {"min": policy.minimum, "max": policy.maximum, "step": policy.step}
        wire["validRange"] = {key: quantity_text(name, value) for key, value in limits.items() if value is not None}
    return wire


@lru_cache(_VALUES, typed=True)  # typed, because True and 1 are different values here
def attribute_wire(value: AttributeValue) -> Wire:
    """Return one attribute value under the key of its type.

    >>> attribute_wire(("version", "9.0.0")), attribute_wire(True), attribute_wire(3)
    ({'version': '9.0.0'}, {'bool': True}, {'int': 3})
    """
    if isinstance(value, tuple):
        kind, text = value
        return {kind: text}
    if isinstance(value, bool):  # checked before int, because a bool is an int
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


@lru_cache(_VALUES)
def quantity_text(name: str, value: int) -> str:
    """Return a capacity as the server writes it: bytes with binary suffixes, counts with decimal ones.

    The server returns a number of bytes that no binary suffix divides as a plain decimal, so it is written as one.

    >>> quantity_text("memory", 81559 << 20), quantity_text("multiprocessors", 132), quantity_text("memory", 125000)
    ('81559Mi', '132', '125k')
    """
    return str(Quantity.parse(str(Quantity.of(value, binary=name in _IN_BYTES))))
