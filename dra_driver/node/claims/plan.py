"""PreparePlan: which steps make a claim's devices usable, in order, each with what is needed to undo it.

In: the claim on this node, and the edits that the hardware returned for each device. Out: a plan; nothing has been
done yet. The same UID, allocation and hardware give the same plan, the same CDI ids and the same bytes. Each kind of
step and what decides on it are below the plan, in order; `sharing_rules` says what a claim may ask of a shared device.
Source: Linux amdkfd (GPUs with workgroup processors, gfx10 and newer, take compute units in pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dra_driver.base.errors import ClaimError
from dra_driver.base.quantity import Quantity
from dra_driver.base.wire import ClientLimits, DeviceType, MpsSettings, SharedDevice, SharingSettings
from dra_driver.hardware.facts import Edits, GpuFacts
from dra_driver.hardware.vendors import MEMORY
from dra_driver.node import cdi
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice, ClaimOnNode, fault_of
from dra_driver.node.claims.device_config import ConfigFault
from dra_driver.node.claims.metadata import RequestMetadata, plan_metadata
from dra_driver.node.claims.sharing_rules import (
    RequestedSharing,
    faults_of_combination,
    faults_of_request,
    limits_of,
    requested_sharing_of,
)
from dra_driver.node.devices.describing import Device, MigPlacement
from dra_driver.node.devices.partitions import occupied


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
    driver: str,
    *,
    mig_on: Collection[str] = (),
    has_metadata: bool = False,
) -> PreparePlan:
    """Plan one claim. Equal arguments give equal plans, and planning has no effect on the node.

    Args:
        on_node: the claim with its devices.
        edits: the CDI edits of each device that no step creates, by name.
        common: the CDI edits that all devices need.
        driver: the driver's name.
        mig_on: the PCI addresses of the GPUs on which this driver has switched on MIG mode for a partition.
        has_metadata: whether containers get files about their devices.

    Raises: ClaimError("claim.bad-config") for configs that do not fit their devices, ("claim.device-in-use") for a
    claim that has a GPU both for a virtual machine and for containers; the first planner that refuses the claim raises.
    """
    claim, own = on_node.claim, on_node.own
    prepared = tuple(_prepared(claim.uid, device, driver) for device in claim.devices)
    steps: list[Step] = [*plan_mig(own, mig_on)]
    for planner in _PLANNERS:
        steps += planner(on_node)
    metadata = plan_metadata(on_node, driver) if has_metadata else ()
    steps.append(_cdi_file(on_node, edits, common, driver, metadata))
    taken = tuple(name for device in own for name in occupied(device.gpu, device.counters))
    return PreparePlan(claim, prepared, tuple(steps), taken)


def _prepared(uid: str, device: AllocatedDevice, driver: str) -> PreparedDevice:
    return PreparedDevice(
        request=device.base_request,
        pool=device.pool,
        device=device.device,
        cdi_ids=(cdi.device_id(driver, uid, device.device, device.share_id),),
        share_id=device.share_id,
    )


def _cdi_file(
    on_node: ClaimOnNode, edits: Mapping[str, Edits], common: Edits, driver: str, metadata: tuple[RequestMetadata, ...]
) -> CdiFileStep:
    made = on_node.made
    return CdiFileStep(
        file=cdi.claim_file(driver, on_node.claim.uid),
        cdi_kind=cdi.kind(driver),
        devices={one.in_file: edits[one.device.name] for one in on_node.results if one.device.name not in made},
        common=common,
        made={claimed.in_file: claimed.device.name for claimed in on_node.results if claimed.device.name in made},
        metadata=metadata,
        standing=tuple(one for one in on_node.own if one.partition is not None and one.placement is None),
    )


# MIG steps: which partitions a claim needs made, and which GPUs must have their MIG mode switched off.

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


# Passthrough plan: which of a claim's devices go to a virtual machine, and by which nodes.


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


# How a claim's devices are shared; what it may request is in `sharing_rules`.


@dataclass(frozen=True, slots=True)
class SharingStep:
    """Share one physical device according to its settings; undone when the last claim that holds it is unprepared.

    `in_file` are the names in the CDI file of the claim's shares of the device, `clients` the limits of those that are
    MPS clients. `made` names the device whose partition an earlier step creates: its UUID is not known before that.
    `tenant` is the namespace to which the device is offered; it is not recorded, because a claim that holds a share
    keeps it.
    """

    kind: ClassVar[str] = "sharing"

    device: SharedDevice
    settings: SharingSettings
    in_file: tuple[str, ...] = ()
    clients: Mapping[str, ClientLimits] = field(default_factory=dict)
    made: str = ""
    tenant: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device.name


def plan_sharing(on_node: ClaimOnNode) -> tuple[SharingStep, ...]:
    """Return a step for each physical device that is to be shared.

    Raises: ClaimError("claim.bad-config") with everything that is wrong.
    """
    by_device: dict[str, list[RequestedSharing]] = {}
    faults: list[ConfigFault] = []
    for claimed in on_node.results:
        if claimed.result.is_admin or not (claimed.is_shared or claimed.configs):
            continue
        requested = requested_sharing_of(claimed, on_node)
        faults += faults_of_request(requested)
        if requested.settings is not None:
            by_device.setdefault(claimed.device.shared_name, []).append(requested)
    if not (by_device or faults):
        return ()
    faults += faults_of_combination(by_device)
    on_node.refuse(faults)
    return tuple(_sharing_step(group) for group in by_device.values() if group[0].has_effect)


def _sharing_step(group: Sequence[RequestedSharing]) -> SharingStep:
    device, settings = group[0].claimed.device, group[0].settings
    assert settings is not None  # noqa: S101 - only requests with settings are in a group
    is_made = device.placement is not None
    shared = SharedDevice(
        name=device.shared_name,
        gpu_uuid=device.gpu.uuid,
        minor=device.gpu.minor,
        pci_address=device.gpu.pci_address,
        mig_uuid=device.partition.uuid if device.partition and not is_made else None,
    )
    clients: dict[str, ClientLimits] = {}
    if isinstance(settings, MpsSettings):
        clients = {one.claimed.in_file: limits_of(group, one, settings) for one in group}
    names = tuple(one.claimed.in_file for one in group)
    tenant = device.share.tenant if device.share else ""
    return SharingStep(shared, settings, names, clients, made=device.name if is_made else "", tenant=tenant)


# How much of a GPU's memory a claim's pods may use where the driver enforces it: shares in, steps out.


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
    for claimed in on_node.results:
        result, device = claimed.result, claimed.device
        if result.is_admin or device.share is None or not device.share.is_hard:
            continue
        consumed = dict(result.consumed).get(MEMORY)
        amount = int(Quantity.parse(consumed).value) if consumed else device.capacity[MEMORY]
        gpu = device.gpu
        shared_devices[device.shared_name] = SharedDevice(device.shared_name, gpu.uuid, gpu.minor, gpu.pci_address)
        limits[device.shared_name] = limits.get(device.shared_name, 0) + amount
    return tuple(MemoryLimitStep(shared_devices[name], limit, on_node.claim.pods) for name, limit in limits.items())


# Compute units: how many of a GPU's units the programs of a claim may use. The limit is cooperative: the runtime in the
# container reads it from a variable, which programs may change. Which units a claim gets is decided when the step is
# carried out, because other claims of the same GPU have units too.

_UNITS, _ARCHITECTURE = "computeUnits", "architecture"  # names of a published capacity and attribute
_FIRST_WITH_PAIRS = len("gfx1010")  # architectures of gfx9 and older have shorter names


@dataclass(frozen=True, slots=True)
class ComputeUnitsStep:
    """Restrict the programs of a claim to `count` of a GPU's `total` compute units, which no other claim gets.

    With `in_pairs` only whole pairs can be chosen. `in_file` are the names of the claim's devices in its CDI file.
    """

    kind: ClassVar[str] = "compute-units"

    device: SharedDevice
    count: int
    total: int
    in_pairs: bool
    in_file: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device.name


def plan_compute_units(on_node: ClaimOnNode) -> tuple[ComputeUnitsStep, ...]:
    """Return the step of the claim's device, if a config chooses compute units of it.

    Raises: ClaimError("claim.bad-config").
    """
    faults: list[ConfigFault] = []
    steps = []
    for claimed in on_node.results:
        count = claimed.config.compute_units if claimed.config else None
        if count is None or claimed.result.is_admin:
            continue
        device = claimed.device
        faults += [fault_of(claimed.result, text) for text in _faults(len(on_node.claim.devices), device, count)]
        gpu = device.gpu
        shared = SharedDevice(device.shared_name, gpu.uuid, gpu.minor, gpu.pci_address)
        total = device.capacity.get(_UNITS, 0)
        steps.append(ComputeUnitsStep(shared, count, total, _is_in_pairs(device), (claimed.in_file,)))
    on_node.refuse(faults)
    return tuple(steps)


def _faults(devices: int, device: Device, count: int) -> list[str]:
    """Return why a claim of so many devices can't have so many compute units of this one."""
    total = device.capacity.get(_UNITS)
    if not total:
        return [f"{device.name} does not say how many compute units it has, so none can be chosen"]
    if device.gpu.parts:
        return [
            f"{device.name} is {device.gpu.parts} GPUs for the runtime: computeUnits goes with one of its partitions"
        ]
    if devices > 1:
        return ["computeUnits goes with a claim of one device: the runtime counts the GPUs of a container from 0"]
    if count > total:
        return [f"computeUnits.count is {count}, and {device.name} has {total}"]
    if count % 2 and _is_in_pairs(device):
        return [f"computeUnits.count must be even, is {count}: {device.name} takes compute units in pairs"]
    return []


def _is_in_pairs(device: Device) -> bool:
    architecture = device.attributes.get(_ARCHITECTURE)
    return isinstance(architecture, str) and len(architecture) >= _FIRST_WITH_PAIRS


# The step that writes a claim's CDI file.


@dataclass(frozen=True, slots=True)
class CdiFileStep:
    """Write one CDI file, and the metadata files that it mounts; undone by removing them.

    `made` names the devices, by their name in the file, whose edits are known only after an earlier step has made
    them. Without `metadata`, containers get no files about their devices. `standing` are the partitions, without those
    with admin access, that no step makes: they existed when the claim was planned.
    """

    kind: ClassVar[str] = "cdi-file"

    file: str
    cdi_kind: str
    devices: Mapping[str, Edits]
    common: Edits
    made: Mapping[str, str] = field(default_factory=dict)
    metadata: tuple[RequestMetadata, ...] = ()
    standing: tuple[Device, ...] = ()

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.file


# All kinds of steps.

Step = MigModeStep | MigPartitionStep | PassthroughStep | SharingStep | MemoryLimitStep | ComputeUnitsStep | CdiFileStep

# In the order of their steps. Beside these, MIG's steps come first, and the CDI file is written last.
_PLANNERS: tuple[Callable[[ClaimOnNode], tuple[Step, ...]], ...] = (
    plan_passthrough,
    plan_sharing,
    plan_memory_limits,
    plan_compute_units,
)
