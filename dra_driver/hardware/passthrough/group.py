"""IOMMU groups: the functions that have to leave the host's drivers together, and those that prevent it.

A virtual machine gets a group only if no function of it serves the host. The audio and USB functions of a graphics card
are passed along with the GPU. If a driver of the host has any other function of the group, the error names that
function and the card is not passed through.
Source: Linux, iommu_group_claim_dma_owner: functions without a driver, with a VFIO driver or pci-stub, and bridges are
no obstacle.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.hardware.passthrough.drivers import is_vfio
from dra_driver.hardware.passthrough.functions import PciFunctionState, read_function, read_group_members
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import HardwareError, Retry

_STUB = "pci-stub"
# Classes of the functions that a graphics card has beside the GPU: audio, USB host controller, USB-C controller.
_COMPANIONS = (0x0403, 0x0C03, 0x0C80)


@dataclass(frozen=True, slots=True)
class PassthroughGroup:
    """An IOMMU group, and the functions of it that go to the virtual machine: the GPU first, then its companions."""

    number: int
    functions: tuple[PciFunctionState, ...]


def read_passthrough_group(roots: Roots, address: str) -> PassthroughGroup:
    """Return what has to be bound to a VFIO driver so that a GPU can be passed through.

    Raises: HardwareError("hardware.gpu-gone", LATER), ("hardware.no-iommu-group"), ("hardware.group-not-viable") with
    the functions that prevent it.
    """
    gpu = read_function(roots, address)
    if gpu is None:
        raise HardwareError("gpu-gone", f"GPU {address} is not on the PCI bus", retry=Retry.LATER)
    if gpu.group is None:
        raise HardwareError(
            "no-iommu-group",
            f"GPU {address} is in no IOMMU group, so it can't be passed to a virtual machine",
            hint="switch the IOMMU on: VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line",
        )
    others = [one for one in read_group_members(roots, gpu.group) if one.address != address]
    companions = tuple(one for one in others if _is_companion(one, gpu))
    blockers = [one for one in others if one not in companions and not _is_harmless(one)]
    if blockers:
        raise HardwareError(
            "group-not-viable",
            f"GPU {address} shares IOMMU group {gpu.group} with {', '.join(map(str, blockers))}, which the host uses",
            hint="move the card to a slot with a group of its own, or release those functions from their drivers",
        )
    return PassthroughGroup(gpu.group, (gpu, *companions))


def _is_companion(one: PciFunctionState, gpu: PciFunctionState) -> bool:
    return one.slot == gpu.slot and one.pci_class >> 8 in _COMPANIONS


def _is_harmless(one: PciFunctionState) -> bool:
    return not one.driver or one.is_bridge or one.driver == _STUB or is_vfio(one.driver)
