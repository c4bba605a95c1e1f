"""Describing: what is published of one device, and why some of it can't be.

In: the facts behind a device, and the rows of its vendor. Out: the device, and a problem for each value that the API
server would refuse.
"""

from __future__ import annotations

from functools import lru_cache

from dra_driver.hardware.facts import GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.published.rows import MEMORY_SLICE, Fact, Found, ValueKind
from dra_driver.inventory.device import AttributeValue, Device
from dra_driver.inventory.vendors import Rows
from dra_driver.model import limits
from dra_driver.model.semver import Semver, SemverError

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def describe(rows: Rows, name: str, found: Found, problems: list[Problem], *, has_slices: bool) -> Device:
    """Return the device whose facts these are, with what of it can be published; the rest is added to `problems`."""
    attributes: dict[str, AttributeValue] = {}
    capacity: dict[str, int] = {}
    for row in rows[found.type]:
        value = row.read(found)
        if value is None:
            continue
        fault = _unfit(row.kind, value)
        if fault:
            problems.append(problem_of("value-unfit", found.gpu, found.partition, f"{row.name} is left out: {fault}"))
        elif row.kind is ValueKind.QUANTITY:
            capacity[row.name] = int(value)
        else:
            attributes[row.name] = ("version", str(value)) if row.kind is ValueKind.VERSION else value
    if found.partition is not None and has_slices:
        fault = _add_memory_slices(capacity, found.partition, len(attributes) + len(capacity))
        if fault:
            problems.append(problem_of("too-many-values", found.gpu, found.partition, fault))
    return Device(name, found.type, attributes, capacity, found.gpu, found.partition)


def _add_memory_slices(capacity: dict[str, int], partition: PartitionFacts, taken: int) -> str:
    """Add a capacity of 1 for each memory slice while there is room, and return what did not fit ("": nothing)."""
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
        least = 0 if kind is ValueKind.QUANTITY else _INT64_MIN
        return "" if least <= value <= _INT64_MAX else f"{value} is out of range"
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


def problem_of(code: str, gpu: GpuFacts, partition: PartitionFacts | None, message: str) -> Problem:
    """Return a problem of a GPU or of a partition."""
    return Problem(f"inventory.{code}", gpu.pci_address if partition is None else partition.uuid, message)
