"""Passthrough plan: which of a claim's devices go to a virtual machine, and by which nodes.

In: a claim on this node. Out: a step for each GPU that has to leave its driver. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dra_driver.claims.allocated.claim_on_node import ClaimOnNode
from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import ClaimError
from dra_driver.model.shares import DeviceType


@dataclass(frozen=True, slots=True)
class PassthroughStep:
    """Bind a GPU to a VFIO driver; undone by binding it to its earlier driver."""

    kind: ClassVar[str] = "passthrough"

    device: str
    gpu: GpuFacts
    prefers_iommufd: bool

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device


def plan_passthrough(on_node: ClaimOnNode) -> tuple[PassthroughStep, ...]:
    """Return a step for each GPU that the claim gives to a virtual machine.

    Raises: ClaimError("claim.device-in-use") if the same claim also has one of these GPUs for containers.
    """
    owned = {one.device.name: one for one in on_node.results if one.is_made and one.device.type is DeviceType.VFIO}
    if not owned:
        return ()
    _refuse_both_sides(on_node, {one.device.gpu.pci_address: name for name, one in owned.items()})
    return tuple(PassthroughStep(name, one.device.gpu, one.iommu.prefers_iommufd) for name, one in owned.items())


def _refuse_both_sides(on_node: ClaimOnNode, passed: Mapping[str, str]) -> None:
    """Refuse a claim that has the same GPU both for a virtual machine and for containers.

    A scheduler without support for counters can allocate that. `passed` holds the names of the devices for virtual
    machines, by PCI address.
    """
    for device in on_node.own:
        other = passed.get(device.gpu.pci_address) if device.type is not DeviceType.IMEX_CHANNEL else None
        if other is not None and device.name != other:
            raise ClaimError(
                "device-in-use",
                f"claim {on_node.claim.namespace}/{on_node.claim.name} has {device.name} and {other}, "
                "which are the same GPU",
                hint="delete the pod and this claim so that other devices are allocated",
            )
