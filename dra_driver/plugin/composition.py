"""Composition: the collaborators of Prepare, Unprepare and repair, made and given to each other in one place.

planner ──► Preparer ──► effects ──► performers: MIG modes, partitions, GPUs for VMs, sharing, memory limits, CDI files
│  └────► late pods
├───────► wait ──► undo ──► effects, release watch, gone claims
reaper ──► Repair ──────────────► undo
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.cdi.store import CdiStore
from dra_driver.hardware.own_change import OwnChanges
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.kube.ports import ClaimApi
from dra_driver.mps.settings import MpsSupervisor
from dra_driver.plugin.effects.cdi_file import CdiFiles, DriverCdiNames
from dra_driver.plugin.effects.compute_units import ComputeUnits
from dra_driver.plugin.effects.device_metadata import DeviceMetadata
from dra_driver.plugin.effects.late_pods import LatePods
from dra_driver.plugin.effects.memory_limiter import MemoryLimiter
from dra_driver.plugin.effects.passthrough.gpu_passthrough import GpuPassthrough
from dra_driver.plugin.effects.passthrough.services import PassthroughServices
from dra_driver.plugin.effects.pod_cgroups import PodCgroups
from dra_driver.plugin.effects.sharing.effects import SharingEffects
from dra_driver.plugin.effects.sharing.holders import SharingHolders
from dra_driver.plugin.effects.steps import Effects
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.mig.mig_modes import MigModes
from dra_driver.plugin.mig.partitioner import Partitioner
from dra_driver.plugin.node_claims.gone_claims import GoneClaims
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.plugin.prepare.claim_undo import ClaimUndo
from dra_driver.plugin.prepare.device_wait import DeviceWait
from dra_driver.plugin.prepare.planner import Planner
from dra_driver.plugin.prepare.preparer import Preparer
from dra_driver.plugin.prepare.release_watch import ReleaseWatch
from dra_driver.plugin.prepare.running_pods import PROC
from dra_driver.plugin.prepare.waiting import InterruptiblePause
from dra_driver.plugin.repair.repair import Repair
from dra_driver.validation.turn import ValidationTurn

PODS_DIR = Path("/var/lib/kubelet/pods")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """Where the kubelet's pods, the kernel's processes and the cgroups of a node are seen."""

    pods: Path = PODS_DIR
    proc: Path = PROC
    cgroups: Path = CGROUPS


@dataclass(frozen=True, slots=True)
class ClaimWork:
    """The objects that work on the claims of a node: for the kubelet's two calls, the repair, and memory limits."""

    preparer: Preparer
    repair: Repair
    limiter: MemoryLimiter


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSurroundings:
    """What the work on claims needs from one node.

    Attributes:
        node: the driver, the pool and the boot.
        api: reads claims from the Kubernetes API.
        ledger: this node's records, which two agents may share.
        store: the folder of CDI files.
        locks: the locks of claims, devices and GPUs, which two agents share.
        hardware: the vendor's port. Its optional parts decide which steps can be carried out.
        inventory: holds the devices that are known now.
        gone: judges whether a claim that holds devices was deleted for good.
        folders: where pods, processes and cgroups are seen.
        own_changes: a GPU is added to it before and after each change of its MIG mode or partitions.
        metadata: the folder of the files that tell containers about their devices.
        validation: the turn of tests of devices, which a claim ends.
        has_metadata: whether such files are written; what was written before is removed in any case.
        passthrough: what giving GPUs to virtual machines needs.
        supervisor: keeps the MPS daemons; if it is None, claims that ask for MPS are refused.
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
    validation: ValidationTurn
    has_metadata: bool = False
    own_changes: OwnChanges = field(default_factory=OwnChanges)
    supervisor: MpsSupervisor | None = None
    passthrough: PassthroughServices = field(default_factory=PassthroughServices)


@dataclass(frozen=True, slots=True)
class _Performers:
    """The performers of single steps, and the effects that run them all."""

    modes: MigModes
    sharing: SharingHolders
    limiter: MemoryLimiter
    effects: Effects
    pods: PodCgroups


@dataclass(frozen=True, slots=True)
class _Undoing:
    """The parts that end the work on a claim: they undo it, and decide who may have its devices next."""

    pause: InterruptiblePause
    release_watch: ReleaseWatch
    undo: ClaimUndo


def compose(here: ClaimSurroundings) -> ClaimWork:
    """Return the objects that prepare, unprepare and repair the claims of one node.

    They start threads only when needed.
    """
    performers = _performers(here)
    undoing = _undoing(here, performers)
    planner = _planner(here, undoing.pause)
    late_pods = LatePods(here.ledger, here.api, performers.pods, here.locks, performers.limiter)
    preparer = _preparer(here, performers, undoing, planner, late_pods)
    return ClaimWork(preparer, _repair(here, performers, undoing, planner, late_pods), performers.limiter)


def _performers(here: ClaimSurroundings) -> _Performers:
    hardware, ledger, locks, boot_id = here.hardware, here.ledger, here.locks, here.node.boot_id
    pods = PodCgroups(here.folders.cgroups)
    modes = MigModes(hardware, locks, ledger, boot_id, own_changes=here.own_changes)
    sharing = SharingHolders(SharingEffects(hardware, here.supervisor), ledger, locks, boot_id)
    limiter = MemoryLimiter(hardware, ledger, locks, pods, boot_id=boot_id)
    partitioner = Partitioner(hardware, modes, boot_id)
    passed = GpuPassthrough(hardware, here.passthrough, locks, boot_id)
    units = ComputeUnits(hardware, ledger, locks)
    files = CdiFiles(here.store, hardware, here.metadata)
    effects = Effects((modes, partitioner, passed, sharing, limiter, units, files))
    return _Performers(modes, sharing, limiter, effects, pods)


def _undoing(here: ClaimSurroundings, performers: _Performers) -> _Undoing:
    ledger, folders = here.ledger, here.folders
    pause = InterruptiblePause(ledger)
    release_watch = ReleaseWatch(ledger, here.node.boot_id, folders.pods, waiting=pause, proc=folders.proc)
    names = DriverCdiNames(here.node.driver)
    undo = ClaimUndo(
        ledger,
        here.locks,
        performers.effects,
        here.store,
        names,
        metadata=here.metadata,
        release_watch=release_watch,
        gone=here.gone,
        waiting=pause,
    )
    return _Undoing(pause, release_watch, undo)


def _planner(here: ClaimSurroundings, pause: InterruptiblePause) -> Planner:
    return Planner(
        here.node,
        DriverCdiNames(here.node.driver),
        api=here.api,
        hardware=here.hardware,
        inventory=here.inventory,
        waiting=pause,
        ledger=here.ledger,
        roots=here.passthrough.access.roots,
        has_metadata=here.has_metadata,
    )


def _preparer(
    here: ClaimSurroundings, performers: _Performers, undoing: _Undoing, planner: Planner, late_pods: LatePods
) -> Preparer:
    ledger, boot_id, undo = here.ledger, here.node.boot_id, undoing.undo
    return Preparer(
        boot_id,
        ledger=ledger,
        locks=here.locks,
        planner=planner,
        effects=performers.effects,
        undo=undo,
        wait=DeviceWait(ledger, boot_id, undoing.pause, undo=undo, release_watch=undoing.release_watch),
        late_pods=late_pods,
        validation=here.validation,
    )


def _repair(
    here: ClaimSurroundings, performers: _Performers, undoing: _Undoing, planner: Planner, late_pods: LatePods
) -> Repair:
    return Repair(
        here.node.boot_id,
        DriverCdiNames(here.node.driver),
        ledger=here.ledger,
        store=here.store,
        locks=here.locks,
        effects=performers.effects,
        undo=undoing.undo,
        gone=here.gone,
        planner=planner,
        modes=performers.modes,
        sharing=performers.sharing,
        release_watch=undoing.release_watch,
        late_pods=late_pods,
        inventory=here.inventory,
        metadata=here.metadata,
    )
