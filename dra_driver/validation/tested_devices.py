"""Tested devices: the parts of a node's hardware that are tested on their own.

Pure. In: an inventory. Out: each GPU, or each existing partition of a GPU in MIG mode. A GPU in MIG mode can't be
tested as a whole; a partition that is made for a claim is used by that claim before there is time for a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.health.fault import Subject
from dra_driver.inventory.offering import Inventory
from dra_driver.model.names import partition_name


def unshared_name(gpu: GpuFacts, partition: PartitionFacts | None) -> str:
    """Return the name under which a GPU or partition is published when it is not shared."""
    if partition is None:
        return gpu.whole_name
    return partition_name(gpu.pci_address, partition.profile, partition.gi_profile_id, partition.start)


@dataclass(frozen=True, slots=True)
class TestedDevice:
    """A GPU, or a partition with its GPU."""

    __test__ = False

    gpu: GpuFacts
    partition: PartitionFacts | None = None

    @property
    def uuid(self) -> str:
        """Return the UUID by which a process chooses the device."""
        return (self.partition or self.gpu).uuid

    @property
    def name(self) -> str:
        """Return the name under which it is published when it is not shared."""
        return unshared_name(self.gpu, self.partition)

    @property
    def subject(self) -> Subject:
        """Return the subject of its faults."""
        part = self.partition
        return Subject(self.gpu.pci_address, (part.gi_profile_id, part.start) if part else None)


def devices_to_test(inventory: Inventory) -> tuple[TestedDevice, ...]:
    """Return the devices that can be tested, in the order of their names."""
    every = inventory.by_name.values()
    gpus = {device.gpu.pci_address: device.gpu for device in every if device.gpu.pci_address}  # a channel has no GPU
    usable = (gpu for gpu in gpus.values() if not gpu.is_lost and not _is_passed_through(gpu))
    found = (one for gpu in usable for one in devices_of(gpu))
    return tuple(sorted(found, key=lambda one: one.name))


def _is_passed_through(gpu: GpuFacts) -> bool:
    """Return whether a virtual machine has a GPU, or only virtual machines may have it."""
    return gpu.passthrough is not None and (gpu.passthrough.is_away or gpu.minor < 0)


def devices_of(gpu: GpuFacts) -> Iterator[TestedDevice]:
    """Yield the devices of one GPU that can be tested."""
    if not gpu.mig_enabled:
        yield TestedDevice(gpu)
    for partition in gpu.partitions:
        yield TestedDevice(gpu, partition)
