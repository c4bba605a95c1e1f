"""Composition: makes the objects behind Prepare, Unprepare and repair, and connects them with each other.

planner ──► Preparer ──► effects ──► performers: MIG modes, partitions, GPUs for VMs, sharing, memory limits, CDI files
│  └────► late pods
├───────► wait ──► undo ──► effects, release watch, gone claims
reaper ──► Repair ──────────────► undo
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.port import Hardware
from dra_driver.kube.paths import ClaimApi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.claims.metadata import DeviceMetadata
from dra_driver.node.devices.offering import CurrentInventory, NodeIdentity
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import GpuHolds, NodeLocks, ValidationLock
from dra_driver.node.mps.client import MpsSupervisor
from dra_driver.node.neighbours.gone_claims import GoneClaims
from dra_driver.node.prepare.node_users import PROC
from dra_driver.node.prepare.preparer import Planner, Preparer
from dra_driver.node.prepare.release_watch import ClaimsOnNodes, InterruptiblePause, NodeNumbers, ReleaseWatch
from dra_driver.node.prepare.repair import Repair
from dra_driver.node.prepare.steps.effects import CdiFiles, Effects
from dra_driver.node.prepare.steps.memory_limiter import LatePods, MemoryLimiter, PodCgroups
from dra_driver.node.prepare.steps.partitioner import MigModes, Partitioner
from dra_driver.node.prepare.steps.passthrough import GpuPassthrough, PassthroughServices
from dra_driver.node.prepare.steps.sharing import SharingHolders
from dra_driver.node.prepare.steps.sharing_modes import ComputeUnits, SharingEffects
from dra_driver.node.prepare.undo import ClaimUndo, DeviceWait
from dra_driver.node.slices.scanner import OwnChanges

PODS_DIR = Path("/var/lib/kubelet/pods")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """The folders in which the kubelet's pods, the kernel's processes and the cgroups of a node are seen."""

    pods: Path = PODS_DIR
    proc: Path = PROC
    cgroups: Path = CGROUPS


@dataclass(frozen=True, slots=True)
class ClaimWork:
    """The objects that work on the claims of a node: for the kubelet's two calls, for repair, and for memory limits."""

    preparer: Preparer
    repair: Repair
    limiter: MemoryLimiter


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimContext:
    """Everything on one node that is needed to prepare and unprepare claims.

    Attributes:
        node: the driver, the pool and the boot.
        api: reads claims from the Kubernetes API.
        ledger: this node's records, which all its agents share.
        store: the folder of CDI files.
        locks: the locks of claims, devices and GPUs, which all its agents share.
        hardware: the vendor's port. Its optional parts decide which steps can be carried out.
        inventory: the devices that are known now.
        gone: reports whether a claim that holds devices was deleted for good.
        folders: where pods, processes and cgroups are seen.
        metadata: the folder of the files in which containers find facts about their devices.
        validation: the lock under which a device is tested; a claim for the device ends the test.
        has_metadata: whether such files are written; those that were written before are removed in any case.
        own_changes: the GPUs whose MIG mode or partitions this driver changes itself; each change is announced to it.
        supervisor: keeps the MPS daemons; if it is None, claims that ask for MPS are refused.
        passthrough: the services that are needed to hand GPUs to virtual machines.
    """

    node: NodeIdentity
    api: ClaimApi
    ledger: Ledger
    store: CdiStore
    locks: NodeLocks
    hardware: Hardware
    inventory: CurrentInventory
    gone: GoneClaims
    folders: NodeFolders = NodeFolders()
    metadata: DeviceMetadata
    validation: ValidationLock
    has_metadata: bool = False
    own_changes: OwnChanges = field(default_factory=OwnChanges)
    supervisor: MpsSupervisor | None = None
    passthrough: PassthroughServices = field(default_factory=PassthroughServices)


@dataclass(frozen=True, slots=True)
class _Performers:
    """The performers of the single kinds of steps, the effects that run them all, and the holds of whole GPUs."""

    modes: MigModes
    sharing: SharingHolders
    limiter: MemoryLimiter
    effects: Effects
    pods: PodCgroups
    gpus: GpuHolds


@dataclass(frozen=True, slots=True)
class _UndoParts:
    """The objects that undo a claim and decide when another claim may have its devices."""

    pause: InterruptiblePause
    release_watch: ReleaseWatch
    undo: ClaimUndo


def compose(context: ClaimContext) -> ClaimWork:
    """Return the objects that prepare, unprepare and repair the claims of one node.

    They start threads only when these are needed.
    """
    performers = _performers(context)
    undo_parts = _undo_parts(context, performers)
    planner = _planner(context, undo_parts.pause)
    late_pods = LatePods(context.ledger, context.api, performers.pods, context.locks, performers.limiter)
    preparer = _preparer(context, performers, undo_parts, planner, late_pods)
    repair = _repair(context, performers, undo_parts, planner, late_pods)
    return ClaimWork(preparer, repair, performers.limiter)


def _performers(context: ClaimContext) -> _Performers:
    hardware, ledger, locks, boot_id = context.hardware, context.ledger, context.locks, context.node.boot_id
    pods = PodCgroups(context.folders.cgroups)
    modes = MigModes(hardware, locks, ledger, boot_id, own_changes=context.own_changes)
    sharing = SharingHolders(SharingEffects(hardware, context.supervisor), ledger, locks, boot_id)
    limiter = MemoryLimiter(hardware, ledger, locks, pods, boot_id=boot_id)
    partitioner = Partitioner(hardware, modes, boot_id)
    passed = GpuPassthrough(hardware, context.passthrough, locks, boot_id)
    units = ComputeUnits(hardware, ledger, locks)
    files = CdiFiles(context.store, hardware, context.metadata)
    effects = Effects((modes, partitioner, passed, sharing, limiter, units, files))
    return _Performers(modes, sharing, limiter, effects, pods, GpuHolds(locks, ledger, context.inventory))


def _undo_parts(context: ClaimContext, performers: _Performers) -> _UndoParts:
    ledger, folders = context.ledger, context.folders
    pause = InterruptiblePause(ledger)
    driver = context.node.driver
    numbers = NodeNumbers(context.store, driver)
    release_watch = ReleaseWatch(
        ledger,
        context.node.boot_id,
        folders.pods,
        numbers=numbers,
        others=ClaimsOnNodes(ledger, numbers, context.api),
        waiting=pause,
        proc=folders.proc,
    )
    undo = ClaimUndo(
        ledger,
        context.locks,
        performers.effects,
        context.store,
        driver,
        gpus=performers.gpus,
        metadata=context.metadata,
        release_watch=release_watch,
        gone=context.gone,
        waiting=pause,
    )
    return _UndoParts(pause, release_watch, undo)


def _planner(context: ClaimContext, pause: InterruptiblePause) -> Planner:
    return Planner(
        context.node,
        api=context.api,
        hardware=context.hardware,
        inventory=context.inventory,
        waiting=pause,
        ledger=context.ledger,
        roots=context.passthrough.access.roots,
        has_metadata=context.has_metadata,
    )


def _preparer(
    context: ClaimContext, performers: _Performers, undo_parts: _UndoParts, planner: Planner, late_pods: LatePods
) -> Preparer:
    ledger, boot_id, undo = context.ledger, context.node.boot_id, undo_parts.undo
    return Preparer(
        boot_id,
        ledger=ledger,
        locks=context.locks,
        gpus=performers.gpus,
        planner=planner,
        effects=performers.effects,
        undo=undo,
        wait=DeviceWait(ledger, boot_id, undo_parts.pause, undo=undo, release_watch=undo_parts.release_watch),
        late_pods=late_pods,
        validation=context.validation,
    )


def _repair(
    context: ClaimContext, performers: _Performers, undo_parts: _UndoParts, planner: Planner, late_pods: LatePods
) -> Repair:
    return Repair(
        context.node.boot_id,
        context.node.driver,
        ledger=context.ledger,
        store=context.store,
        locks=context.locks,
        effects=performers.effects,
        undo=undo_parts.undo,
        gone=context.gone,
        planner=planner,
        modes=performers.modes,
        sharing=performers.sharing,
        release_watch=undo_parts.release_watch,
        late_pods=late_pods,
        inventory=context.inventory,
        metadata=context.metadata,
    )
