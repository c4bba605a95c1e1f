"""Build: facts in, devices out.

Pure and total: any facts give an inventory, and what can't be published is left out and stands in its problems.
The order of devices is that of their names; the same facts give the same inventory.

A GPU in MIG mode is not published as a whole GPU: its partitions are, and without partitions nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts, Problem
from dra_driver.inventory.attributes import MEMORY_SLICE, ROWS, Fact, Found, Kind
from dra_driver.inventory.device import AttributeValue, Device, DeviceType, Inventory
from dra_driver.model import limits, names
from dra_driver.model.semver import Semver, SemverError

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_SHARES_AN_INSTANCE = re.compile(r"[0-9]+c\.")  # "1c.3g.40gb": one of several compute instances of a GPU instance


def build_inventory(facts: Facts) -> Inventory:
    """Give the devices that these facts are published as, with every problem found on the way."""
    problems = list(facts.problems)
    by_name: dict[str, Device] = {}
    for gpu in facts.gpus:
        for name, partition in _devices_of(gpu):
            if not names.is_dns_label(name):
                problems.append(_problem("name-invalid", gpu, partition, f"{name!r} can't name a device"))
            elif name in by_name:
                problems.append(_problem("name-taken", gpu, partition, f"another device is already named {name}"))
            else:
                by_name[name] = _device(
                    name, Found(gpu, partition, facts.driver_version, facts.cuda_driver_version), problems
                )
    return Inventory(
        devices=tuple(by_name[name] for name in sorted(by_name)),
        problems=tuple(dict.fromkeys(problems)),
        waiting_for=facts.waiting_for,
        driver_version=facts.driver_version,
    )


def _devices_of(gpu: GpuFacts) -> Iterator[tuple[str, PartitionFacts | None]]:
    if not gpu.mig_enabled:
        yield names.gpu_name(gpu.pci_address), None
        return
    for partition in gpu.partitions:
        name = names.partition_name(gpu.pci_address, partition.profile, partition.gi_profile_id, partition.start)
        if _SHARES_AN_INSTANCE.match(partition.profile):
            name += f"-{partition.ci_id}"
        yield name, partition


def _device(name: str, found: Found, problems: list[Problem]) -> Device:
    device_type = DeviceType.GPU if found.partition is None else DeviceType.MIG
    attributes: dict[str, AttributeValue] = {}
    capacity: dict[str, int] = {}
    for row in ROWS[device_type]:
        value = row.read(found)
        if value is None:
            continue
        fault = _unfit(row.kind, value)
        if fault:
            problems.append(_problem("value-unfit", found.gpu, found.partition, f"{row.name} is left out: {fault}"))
        elif row.kind is Kind.QUANTITY:
            capacity[row.name] = int(value)
        else:
            attributes[row.name] = ("version", str(value)) if row.kind is Kind.VERSION else value
    if found.partition is not None:
        fault = _add_memory_slices(capacity, found.partition, len(attributes) + len(capacity))
        if fault:
            problems.append(_problem("too-many-values", found.gpu, found.partition, fault))
    return Device(name, device_type, attributes, capacity, found.gpu, found.partition)


def _add_memory_slices(capacity: dict[str, int], partition: PartitionFacts, taken: int) -> str:
    """Add a capacity of 1 for each memory slice while there is room; say what did not fit."""
    if partition.start < 0:
        return f"{MEMORY_SLICE}s are left out: the partition starts at slice {partition.start}"
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES - taken
    slices = range(partition.start, partition.start + partition.size)
    capacity.update({f"{MEMORY_SLICE}{index}": 1 for index in slices[:room]})
    if len(slices) <= room:
        return ""
    return f"{MEMORY_SLICE}{slices[room]} and above are left out: a device has room for 32 values"


def _unfit(kind: Kind, value: Fact) -> str:
    """Say why the API server would refuse a value, "" if it would not.

    Source: Kubernetes API resource/v1 DeviceAttribute, DeviceCapacity.
    """
    if kind is Kind.BOOL:
        return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
    if kind in {Kind.INT, Kind.QUANTITY}:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is not a whole number"
        least = 0 if kind is Kind.QUANTITY else _INT64_MIN
        return "" if least <= value <= _INT64_MAX else f"{value} is out of range"
    if not isinstance(value, str):
        return f"{value!r} is not a text"
    return _unfit_text(kind, value)


def _unfit_text(kind: Kind, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{text!r} is not Unicode text"
    if not text:
        return "it is empty"
    if size > limits.ATTRIBUTE_STRING_BYTES:
        return f"{text!r} has {size} bytes, {limits.ATTRIBUTE_STRING_BYTES} are allowed"
    if kind is Kind.VERSION:
        try:
            Semver.parse(text)
        except SemverError as error:
            return f"{text!r} is not a semantic version: {error}"
    return ""


def _problem(code: str, gpu: GpuFacts, partition: PartitionFacts | None, message: str) -> Problem:
    return Problem(f"inventory.{code}", gpu.pci_address if partition is None else partition.uuid, message)
