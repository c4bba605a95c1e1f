"""PreparePlan: which steps make a claim's devices usable, in order, each with what is needed to undo it.

In: the claim on this node, and the edits that the hardware returned for each device. Out: a plan; nothing has been
done yet. The same UID, allocation and hardware give the same plan, the same CDI ids and the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim, AllocatedDevice
from dra_driver.claims.allocated.claim_on_node import CdiNames, ClaimOnNode
from dra_driver.claims.reports.metadata import plan_metadata
from dra_driver.claims.steps.cdi_file import CdiFileStep
from dra_driver.claims.steps.compute_units import ComputeUnitsStep, plan_compute_units
from dra_driver.claims.steps.memory_limits import MemoryLimitStep, plan_memory_limits
from dra_driver.claims.steps.mig import MigModeStep, MigPartitionStep, plan_mig
from dra_driver.claims.steps.passthrough import PassthroughStep, plan_passthrough
from dra_driver.claims.steps.sharing import SharingStep, plan_sharing
from dra_driver.inventory.mig.counters import occupied
from dra_driver.model.edits import Edits

Step = MigModeStep | MigPartitionStep | PassthroughStep | SharingStep | MemoryLimitStep | ComputeUnitsStep | CdiFileStep

# In the order of their steps. Beside these, MIG's steps come first, and the CDI file is written last.
_PLANNERS: tuple[Callable[[ClaimOnNode], tuple[Step, ...]], ...] = (
    plan_passthrough,
    plan_sharing,
    plan_memory_limits,
    plan_compute_units,
)


class PreparedDevice(NamedTuple):
    """What the kubelet is told about one result."""

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


class PreparePlan(NamedTuple):
    """The steps in order (they are undone in reverse), and what the kubelet is told once they are done.

    `occupied` names the memory slices that the claim's devices take, if other devices could take them too.
    """

    claim: AllocatedClaim
    devices: tuple[PreparedDevice, ...]
    steps: tuple[Step, ...]
    occupied: tuple[str, ...] = ()


def plan_prepare(
    on_node: ClaimOnNode,
    edits: Mapping[str, Edits],
    common: Edits,
    names: CdiNames,
    *,
    mig_on: Collection[str] = (),
    metadata_of: str = "",
) -> PreparePlan:
    """Plan one claim. Equal arguments give equal plans, and planning has no effect on the node.

    Args:
        on_node: the claim with its devices.
        edits: the CDI edits of each device that no step creates, by name.
        common: the CDI edits that all devices need.
        names: how CDI files and devices are named.
        mig_on: the PCI addresses of the GPUs on which this driver has switched on MIG mode for a partition.
        metadata_of: the driver's name where containers get files about their devices, else "".

    Raises: ClaimError("claim.bad-config") for configs that do not fit their devices, ("claim.device-in-use") for a
    claim that has a GPU both for a virtual machine and for containers; the first planner that refuses the claim raises.
    """
    claim, own = on_node.claim, on_node.own
    prepared = tuple(_prepared(claim.uid, device, names) for device in claim.devices)
    steps: list[Step] = [*plan_mig(own, mig_on)]
    for planner in _PLANNERS:
        steps += planner(on_node)
    steps.append(_cdi_file(on_node, edits, common, names, metadata_of))
    taken = tuple(name for device in own for name in occupied(device.gpu, device.counters))
    return PreparePlan(claim, prepared, tuple(steps), taken)


def _prepared(uid: str, device: AllocatedDevice, names: CdiNames) -> PreparedDevice:
    return PreparedDevice(
        request=device.base_request,
        pool=device.pool,
        device=device.device,
        cdi_ids=(names.id(uid, device.device, device.share_id),),
        share_id=device.share_id,
    )


def _cdi_file(
    on_node: ClaimOnNode, edits: Mapping[str, Edits], common: Edits, names: CdiNames, metadata_of: str
) -> CdiFileStep:
    made = on_node.made
    return CdiFileStep(
        file=names.file(on_node.claim.uid),
        cdi_kind=names.kind,
        devices={one.in_file: edits[one.device.name] for one in on_node.results if one.device.name not in made},
        common=common,
        made={one.in_file: one.device.name for one in on_node.results if one.device.name in made},
        metadata=plan_metadata(on_node, metadata_of) if metadata_of else (),
        standing=tuple(one for one in on_node.own if one.partition is not None and one.placement is None),
    )
