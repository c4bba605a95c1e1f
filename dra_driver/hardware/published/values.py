"""Published values: readers of the values that devices of several vendors have.

In: what is known about one device. Out: a value, or None if it is not known. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import NAMESPACE_DNS, uuid5

from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.published.rows import Fact, FoundDevice

Gpu = TypeVar("Gpu", bound=GpuFacts)


def of_gpu(kind: type[Gpu], read: Callable[[Gpu], Fact]) -> Callable[[FoundDevice], Fact]:
    """Return a reader of one fact of a vendor's own GPUs."""

    def read_found(found: FoundDevice) -> Fact:
        return read(found.gpu) if isinstance(found.gpu, kind) else None

    return read_found


def of_partition(field: str) -> Callable[[FoundDevice], Fact]:
    """Return a reader of one fact of the partition."""

    def read(found: FoundDevice) -> Fact:
        value: Fact = getattr(found.partition, field, None)
        return value

    return read


def memory(found: FoundDevice) -> Fact:
    """Return the memory in bytes."""
    return found.gpu.memory_bytes if found.partition is None else found.partition.memory_bytes


def uuid(found: FoundDevice) -> Fact:
    """Return the UUID; a partition that Prepare creates has none yet.

    A GPU for a virtual machine has one that follows from its PCI address, because its own is not known while no driver
    of the host has it. Source: NVIDIA's DRA driver, the same name space.
    """
    if found.is_passed:
        return str(uuid5(NAMESPACE_DNS, found.gpu.pci_address))
    return found.gpu.uuid if found.partition is None else found.partition.uuid or None


def of_share(field: str) -> Callable[[FoundDevice], Fact]:
    """Return a reader of one property of the share."""

    def read(found: FoundDevice) -> Fact:
        value: Fact = getattr(found.share, field, None)
        return str(value) if isinstance(value, str) else value  # an enumeration is published as its text

    return read


def strategy(found: FoundDevice) -> Fact:
    """Return how a shared device is shared."""
    return str(found.share.strategy or "none") if found.share else None
