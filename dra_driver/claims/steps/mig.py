"""MIG steps: which partitions a claim needs made, and which GPUs must have their MIG mode switched off. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device, MigPlacement
from dra_driver.model.shares import DeviceType

_WHOLE = (DeviceType.GPU, DeviceType.VFIO)  # types of devices that need a GPU's MIG mode off


@dataclass(frozen=True, slots=True)
class MigModeStep:
    """Switch off a GPU's MIG mode, so that it can be used whole; undone by restoring what an administrator had set."""

    kind: ClassVar[str] = "mig-mode"

    gpu: GpuFacts

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.gpu.pci_address


@dataclass(frozen=True, slots=True)
class MigPartitionStep:
    """Create one partition, switching on MIG mode for it; undone by destroying the partition."""

    kind: ClassVar[str] = "mig-partition"

    device: str
    gpu: GpuFacts
    placement: MigPlacement

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device


def plan_mig(own: Sequence[Device], mig_on: Collection[str]) -> tuple[MigModeStep | MigPartitionStep, ...]:
    """Return the steps for the devices that a claim owns.

    `mig_on` are the PCI addresses of the GPUs on which this driver has switched on MIG mode for a partition.
    """
    steps: list[MigModeStep | MigPartitionStep] = []
    for device in own:
        gpu = device.gpu
        if device.placement is not None:
            steps.append(MigPartitionStep(device.name, gpu, device.placement))
        elif device.type in _WHOLE and device.counter_set and (gpu.mig_enabled or gpu.pci_address in mig_on):
            steps.append(MigModeStep(gpu))
    return tuple(steps)
