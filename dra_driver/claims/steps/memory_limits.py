"""How much of a GPU's memory a claim's pods may use where the driver enforces it: shares in, steps out. Pure.

A step concerns one GPU: the claim's shares of that GPU are added up. Never: where a pod's cgroup is, and what other
claims of the same pod add (both are determined when the step is carried out).
Source: KEP-5075 (consumed capacity); NVIDIA, "MPS v3 Memory Partitioning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dra_driver.claims.allocated.claim_on_node import ClaimOnNode
from dra_driver.hardware.published.rows import MEMORY
from dra_driver.model.quantity import Quantity
from dra_driver.model.sharing import SharedDevice


@dataclass(frozen=True, slots=True)
class MemoryLimitStep:
    """Allow each pod of a claim `limit` bytes of a GPU, in addition to its other claims; undone by lowering the limit.

    `pods` are the UIDs of the pods for which the claim was reserved when it was prepared.
    """

    kind: ClassVar[str] = "memory-limit"

    device: SharedDevice
    limit: int
    pods: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device.name


def plan_memory_limits(on_node: ClaimOnNode) -> tuple[MemoryLimitStep, ...]:
    """Return a step for each GPU of which the claim has shares whose limits the driver must enforce."""
    limits: dict[str, int] = {}
    shared_devices: dict[str, SharedDevice] = {}
    for one in on_node.results:
        result, device = one.result, one.device
        if result.is_admin or device.share is None or not device.share.is_hard:
            continue
        consumed = dict(result.consumed).get(MEMORY)
        amount = int(Quantity.parse(consumed).value) if consumed else device.capacity[MEMORY]
        gpu = device.gpu
        shared_devices[device.shared_name] = SharedDevice(device.shared_name, gpu.uuid, gpu.minor, gpu.pci_address)
        limits[device.shared_name] = limits.get(device.shared_name, 0) + amount
    return tuple(MemoryLimitStep(shared_devices[name], limit, on_node.claim.pods) for name, limit in limits.items())
