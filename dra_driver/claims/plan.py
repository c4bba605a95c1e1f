"""PreparePlan: which steps make a claim's devices usable, in order, each with what is needed to undo it.

In: the claim, the inventory, and the edits that the hardware returned for each device. Out: a plan; nothing has been
done yet. The same UID, allocation and hardware give the same plan, the same CDI ids and the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.claims.compute_units import ComputeUnitsStep, plan_compute_units
from dra_driver.claims.memory_limits import MemoryLimitStep, plan_limits
from dra_driver.claims.metadata import RequestMetadata, plan_metadata
from dra_driver.claims.passthrough_plan import PassthroughStep, plan_passthrough
from dra_driver.claims.sharing_plan import SharingStep, plan_sharing
from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Cut, Device
from dra_driver.inventory.mig.counters import occupied
from dra_driver.inventory.offering import Inventory
from dra_driver.model.edits import Edits
from dra_driver.model.errors import GPU_LOST, ClaimError, Retry
from dra_driver.model.names import gpu_name, replicated_name
from dra_driver.model.shares import DeviceType, Share, ShareMode

_WHOLE = (DeviceType.GPU, DeviceType.VFIO)  # types of devices that need a GPU's MIG mode off


class CdiNames(Protocol):
    """How CDI files, their kind and their devices are named; supplied by the plugin, which knows the `cdi` room."""

    @property
    def kind(self) -> str:
        """The kind of all devices that this driver prepares."""

    def file(self, uid: str) -> str:
        """Return the name of a claim's file."""

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the name of a device within that file."""

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the fully qualified id of that device."""


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
    cut: Cut

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


def devices_of(claim: AllocatedClaim, inventory: Inventory) -> dict[str, Device]:
    """Return the claim's devices in the inventory, by name.

    Raises: ClaimError("claim.hardware-waiting") while the hardware does not answer at all, or ("claim.device-unknown")
    naming every device that this node does not have now, ("claim.gpu-lost") where its GPU is lost; all retry LATER.
    """
    found = {d.device: _find(inventory, d) for d in claim.devices}
    missing = sorted(name for name, device in found.items() if device is None)
    if not missing:
        return {name: device for name, device in found.items() if device is not None}
    if inventory.waiting_for:
        raise ClaimError(
            "hardware-waiting",
            f"claim {claim.namespace}/{claim.name} waits for {inventory.waiting_for}",
            retry=Retry.LATER,
        )
    refuse_lost(claim, _on_lost_gpus(inventory, missing))
    raise ClaimError(
        "device-unknown",
        f"claim {claim.namespace}/{claim.name} was allocated {', '.join(missing)}, which this node does not have now",
        hint="a GPU may have been lost or re-partitioned; `dra-driver devices` shows what is there",
        retry=Retry.LATER,
    )


def refuse_lost(claim: AllocatedClaim, names: Collection[str]) -> None:
    """Refuse to prepare a claim with these devices of lost GPUs, if there are any. Raises: ClaimError."""
    if not names:
        return
    full_name = f"{claim.namespace}/{claim.name}"
    raise ClaimError(
        "gpu-lost",
        f"claim {full_name} was allocated {', '.join(names)}, whose GPU is lost",
        hint=f"delete the pods that use claim {full_name}: the allocation lasts for as long as they exist, and only "
        "the pods that replace them are scheduled again",
        retry=Retry.LATER,
    )


def _on_lost_gpus(inventory: Inventory, names: Collection[str]) -> list[str]:
    """Return the devices among these whose GPU was there before and no longer answers."""
    gpus = tuple(gpu_name(problem.subject) for problem in inventory.problems if problem.code == GPU_LOST)
    return [name for name in names if any(name == gpu or name.startswith(f"{gpu}-") for gpu in gpus)]


def _find(inventory: Inventory, result: AllocatedDevice) -> Device | None:
    """Find an allocated device; for a replica that is no longer configured, find at least the device behind it."""
    device = inventory.find(result.device, result.share_id)
    parent = replicated_name(result.device)
    if device is not None or parent is None:
        return device
    whole = inventory.find(parent, None)
    if whole is None or whole.share is not None:
        return None
    share = Share(parent, ShareMode.REPLICAS, int(result.device.rpartition("-")[2]))
    return Device(result.device, DeviceType(f"{whole.type}-share"), {}, {}, whole.gpu, whole.partition, share=share)


def is_made(claim: AllocatedClaim, device: Device) -> bool:
    """Return whether Prepare makes this device: a placement or a GPU for a virtual machine, if the claim owns it.

    Admin access never makes one.
    """
    return _takes_shape(device) and any(d.device == device.name and not d.is_admin for d in claim.devices)


def plan_prepare(
    claim: AllocatedClaim,
    devices: Mapping[str, Device],
    edits: Mapping[str, Edits],
    common: Edits,
    names: CdiNames,
    *,
    mig_on: Collection[str] = (),
    metadata_of: str = "",
) -> PreparePlan:
    """Plan one claim. Equal arguments give equal plans, and planning has no effect on the node.

    Args:
        claim: the allocated claim.
        devices: each of the claim's devices by name (`devices_of`).
        edits: the CDI edits of each device that no step creates, by name.
        common: the CDI edits that all devices need.
        names: how CDI files and devices are named.
        mig_on: the PCI addresses of the GPUs on which this driver has switched on MIG mode for a partition.
        metadata_of: the driver's name where containers get files about their devices, else "".

    Raises: ClaimError("claim.bad-config") for configs that do not fit their devices.
    """
    own = [devices[name] for name in dict.fromkeys(d.device for d in claim.devices if not d.is_admin)]
    made = frozenset(device.name for device in own if _takes_shape(device))
    results = {d: names.device(claim.uid, d.device, d.share_id) for d in claim.devices}
    in_file = {name: d.device for d, name in results.items()}
    cdi = CdiFileStep(
        file=names.file(claim.uid),
        cdi_kind=names.kind,
        devices={name: edits[device] for name, device in in_file.items() if device not in made},
        common=common,
        made={name: device for name, device in in_file.items() if device in made},
        metadata=plan_metadata(claim, devices, results, driver=metadata_of, made=made) if metadata_of else (),
    )
    prepared = tuple(_prepared(claim.uid, device, names) for device in claim.devices)
    taken = tuple(name for device in own for name in occupied(device.gpu, device.counters))
    sharing, limits = plan_sharing(claim, devices, results), plan_limits(claim, devices)
    units, passed = plan_compute_units(claim, devices, results), plan_passthrough(claim, devices)
    steps = (*_mig_steps(own, mig_on), *passed, *sharing, *limits, *units, cdi)
    return PreparePlan(claim, prepared, steps, taken)


def _takes_shape(device: Device) -> bool:
    """Return whether the nodes of a device are known only once a step has been carried out."""
    return device.cut is not None or device.type is DeviceType.VFIO


def _prepared(uid: str, device: AllocatedDevice, names: CdiNames) -> PreparedDevice:
    return PreparedDevice(
        request=device.base_request,
        pool=device.pool,
        device=device.device,
        cdi_ids=(names.id(uid, device.device, device.share_id),),
        share_id=device.share_id,
    )


def _mig_steps(own: list[Device], mig_on: Collection[str]) -> list[Step]:
    steps: list[Step] = []
    for device in own:
        gpu = device.gpu
        if device.cut is not None:
            steps.append(MigPartitionStep(device.name, gpu, device.cut))
        elif device.type in _WHOLE and device.counter_set and (gpu.mig_enabled or gpu.pci_address in mig_on):
            steps.append(MigModeStep(gpu))
    return steps
