"""PreparePlan: which steps make a claim's devices usable, in order, each with what is needed to undo it.

In: the claim on this node, and the edits that the hardware returned for each device. Out: a plan; nothing has been
done yet. The same UID, allocation and hardware give the same plan, the same CDI ids and the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.claims.claim_on_node import CdiNames, ClaimOnNode
from dra_driver.claims.compute_units import ComputeUnitsStep, plan_compute_units
from dra_driver.claims.memory_limits import MemoryLimitStep, plan_limits
from dra_driver.claims.metadata import RequestMetadata, plan_metadata
from dra_driver.claims.passthrough_plan import PassthroughStep, plan_passthrough
from dra_driver.claims.sharing_plan import SharingStep, plan_sharing
from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device, MigPlacement
from dra_driver.inventory.mig.counters import occupied
from dra_driver.model.edits import Edits
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


@dataclass(frozen=True, slots=True)
class CdiFileStep:
    """Write one CDI file, and the metadata files that it mounts; undone by removing them.

    `made` names the devices, by their name in the file, whose edits are known only after an earlier step has made
    them. Without `metadata`, containers get no files about their devices.
    """

    kind: ClassVar[str] = "cdi-file"

    file: str
    cdi_kind: str
    devices: Mapping[str, Edits]
    common: Edits
    made: Mapping[str, str] = field(default_factory=dict)
    metadata: tuple[RequestMetadata, ...] = ()

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.file


Step = MigModeStep | MigPartitionStep | PassthroughStep | SharingStep | MemoryLimitStep | ComputeUnitsStep | CdiFileStep


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """What the kubelet is told about one result."""

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparePlan:
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

    Raises: ClaimError("claim.bad-config") for configs that do not fit their devices.
    """
    claim, own = on_node.claim, on_node.own
    prepared = tuple(_prepared(claim.uid, device, names) for device in claim.devices)
    mig = _mig_steps(own, mig_on)
    cdi = _cdi_file(on_node, edits, common, names, metadata_of)
    taken = tuple(name for device in own for name in occupied(device.gpu, device.counters))
    sharing, limits = plan_sharing(on_node), plan_limits(on_node)
    units, passed = plan_compute_units(on_node), plan_passthrough(on_node)
    return PreparePlan(claim, prepared, (*mig, *passed, *sharing, *limits, *units, cdi), taken)


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
    )


def _mig_steps(own: Sequence[Device], mig_on: Collection[str]) -> list[Step]:
    steps: list[Step] = []
    for device in own:
        gpu = device.gpu
        if device.placement is not None:
            steps.append(MigPartitionStep(device.name, gpu, device.placement))
        elif device.type in _WHOLE and device.counter_set and (gpu.mig_enabled or gpu.pci_address in mig_on):
            steps.append(MigModeStep(gpu))
    return steps
