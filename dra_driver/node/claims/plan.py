"""PreparePlan: which steps make a claim's devices usable, in order, each with what is needed to undo it.

In: the claim on this node, and the edits that the hardware returned for each device. Out: a plan; nothing has been
done yet. The same UID, allocation and hardware give the same plan, the same CDI ids and the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.base.edits import Edits
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.base.versions import Semver, SemverError, normalize
from dra_driver.base.wire import Wire
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.claims.claim_on_node import CdiNames, ClaimOnNode
from dra_driver.node.claims.gpu_steps import (
    CdiFileStep,
    ComputeUnitsStep,
    MemoryLimitStep,
    MigModeStep,
    MigPartitionStep,
    PassthroughStep,
    plan_compute_units,
    plan_memory_limits,
    plan_mig,
    plan_passthrough,
)
from dra_driver.node.claims.metadata import plan_metadata
from dra_driver.node.claims.sharing_steps import SharingStep, plan_sharing
from dra_driver.node.devices.partitions import occupied

Step = MigModeStep | MigPartitionStep | PassthroughStep | SharingStep | MemoryLimitStep | ComputeUnitsStep | CdiFileStep

# In the order of their steps. Beside these, MIG's steps come first, and the CDI file is written last.
_PLANNERS: tuple[Callable[[ClaimOnNode], tuple[Step, ...]], ...] = (
    plan_passthrough,
    plan_sharing,
    plan_memory_limits,
    plan_compute_units,
)


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


# The CUDA version that a pod's images need, as far as the pod states it.

VARIABLE, ANNOTATION = "NVIDIA_REQUIRE_CUDA", "gpu.nvidia.com/cuda-required"
_NUMBERS = r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}"
_CONSTRAINT = re.compile(rf"(?P<name>cuda|driver)(?P<relation>>=|<=|==|!=|=|<|>)(?P<version>{_NUMBERS})")
_ORDINARY = re.compile(_NUMBERS)
_MAX_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class CudaRequirement:
    """A need: the lowest CUDA version, what states it, and the alternatives, each a list of constraints."""

    version: str
    stated_by: str
    alternatives: tuple[tuple[str, ...], ...]

    @property
    def selector(self) -> str:
        """The CEL expression that matches only devices whose driver is new enough."""
        version = normalize(self.version)
        return f'device.attributes["{NVIDIA_DRIVER}"].cudaDriverVersion.compareTo(semver("{version}")) >= 0'

    def is_met_by(self, cuda: Semver, driver: Semver | None) -> bool:
        """Return whether a driver meets the need. What can't be judged here, such as a brand, counts as met."""
        known = {"cuda": cuda, "driver": driver}
        return any(all(_holds(one, known) for one in alternative) for alternative in self.alternatives)


def cuda_requirements(wire: Wire) -> Iterator[CudaRequirement]:
    """Yield the needs that a pod, or the metadata of another object, states."""
    annotations = (wire.get("metadata") or {}).get("annotations") or {}
    stated = annotations.get(ANNOTATION) if isinstance(annotations, Mapping) else None
    if isinstance(stated, str) and _ORDINARY.fullmatch(stated):
        yield CudaRequirement(stated, f"annotation {ANNOTATION}", ((f"cuda>={stated}",),))
    spec = wire.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for entry in container.get("env") or ():
            if entry.get("name") == VARIABLE and isinstance(entry.get("value"), str):
                yield from _of_variable(entry["value"], f"container {container.get('name')}: {VARIABLE}")


def _of_variable(text: str, stated_by: str) -> Iterator[CudaRequirement]:
    alternatives = tuple(tuple(part.split(",")) for part in text[:_MAX_CHARACTERS].split())
    least = [
        found["version"]
        for alternative in alternatives
        for one in alternative
        if (found := _CONSTRAINT.fullmatch(one)) and found["name"] == "cuda" and found["relation"] in {">=", ">", "="}
    ]
    if least:
        yield CudaRequirement(min(least, key=_version), stated_by, alternatives)


def _version(text: str) -> Semver:
    return Semver.parse(normalize(text))


def _holds(constraint: str, known: Mapping[str, Semver | None]) -> bool:
    found = _CONSTRAINT.fullmatch(constraint)
    have = known[found["name"]] if found else None
    if found is None or have is None:
        return True
    try:
        wanted = _version(found["version"])
    except SemverError:
        return True
    order = have.compare(wanted)
    holds = {
        ">=": order >= 0, "<=": order <= 0, ">": order > 0, "<": order < 0, "!=": order != 0,
    }  # fmt: skip
    return holds.get(found["relation"], order == 0)
