"""Composition: the collaborators of Prepare, Unprepare and repair, made and given to each other in one place.

planner ──► Preparer ──► effects ──► performers: MIG modes, partitions, sharing, memory limits, CDI files
│  └────► late pods
├───────► wait ──► undo ──► effects, guard, gone claims
reaper ──► Repair ──────────────► undo
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi.store import CdiStore
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.offering import Inventory
from dra_driver.mps.settings import MpsSupervisor
from dra_driver.plugin.effects.cdi_file import CdiFiles, DriverCdiNames
from dra_driver.plugin.effects.late_pods import LatePods
from dra_driver.plugin.effects.memory_limiter import MemoryLimiter
from dra_driver.plugin.effects.pod_cgroups import PodCgroups
from dra_driver.plugin.effects.sharing.effects import SharingEffects
from dra_driver.plugin.effects.sharing.holders import SharingHolders
from dra_driver.plugin.effects.steps import Effects
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.mig.mig_modes import MigModes
from dra_driver.plugin.mig.partitioner import Partitioner
from dra_driver.plugin.node_claims.gone_claims import ClaimApi, GoneClaims
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.plugin.prepare.claim_undo import ClaimUndo
from dra_driver.plugin.prepare.device_wait import DeviceWait
from dra_driver.plugin.prepare.guard import Guard
from dra_driver.plugin.prepare.planner import Planner
from dra_driver.plugin.prepare.preparer import Preparer
from dra_driver.plugin.prepare.running_pods import PROC
from dra_driver.plugin.prepare.waiting import InterruptiblePause
from dra_driver.plugin.repair.repair import Repair

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
    """What works on the claims of a node: the kubelet's two calls, and the repair besides them."""

    preparer: Preparer
    repair: Repair


def compose(
    node: NodeIdentity,
    *,
    api: ClaimApi,
    ledger: Ledger,
    store: CdiStore,
    locks: NodeLocks,
    hardware: Hardware,
    inventory: Callable[[], Inventory],
    gone: GoneClaims,
    folders: NodeFolders = NodeFolders(),
    gpu_changed: Callable[[GpuFacts], None] = lambda _: None,
    supervisor: MpsSupervisor | None = None,
) -> ClaimWork:
    """Return what prepares, unprepares and repairs the claims of one node. No thread runs until it is needed.

    Args:
        node: the driver, the pool and the boot.
        api: reads claims from the Kubernetes API.
        ledger: this node's records, which two agents may share.
        store: the folder of CDI files.
        locks: the locks of claims, devices and GPUs, which two agents share.
        hardware: the vendor's port; what it can do beyond the port's core decides which steps can be carried out.
        inventory: returns the devices that are known now.
        gone: judges whether a claim that holds devices was deleted for good.
        folders: where pods, processes and cgroups are seen.
        gpu_changed: called with a GPU before and after each change of its MIG mode or partitions.
        supervisor: keeps the MPS daemons; None refuses MPS.
    """
    names, pods = DriverCdiNames(node.driver), PodCgroups(folders.cgroups)
    pause = InterruptiblePause(ledger.version)
    guard = Guard(ledger, node.boot_id, folders.pods, freed=pause.wake, proc=folders.proc)
    modes = MigModes(hardware, locks, ledger, node.boot_id, changed=gpu_changed)
    sharing = SharingHolders(SharingEffects(hardware, supervisor), ledger, locks, node.boot_id)
    limiter = MemoryLimiter(hardware, ledger, locks, pods)
    partitioner = Partitioner(hardware, modes, node.boot_id)
    effects = Effects((modes, partitioner, sharing, limiter, CdiFiles(store, hardware)))
    late_pods = LatePods(ledger, api, pods, locks, limiter)
    planner = Planner(node, names, api=api, hardware=hardware, inventory=inventory, waiting=pause, ledger=ledger)
    undo = ClaimUndo(ledger, locks, effects, store, names, guard=guard, gone=gone, freed=pause.wake)
    preparer = Preparer(
        node.boot_id,
        ledger=ledger,
        locks=locks,
        planner=planner,
        effects=effects,
        undo=undo,
        wait=DeviceWait(ledger, node.boot_id, pause, undo=undo, guard=guard),
        late_pods=late_pods,
    )
    repair = Repair(
        node.boot_id,
        names,
        ledger=ledger,
        store=store,
        locks=locks,
        effects=effects,
        undo=undo,
        gone=gone,
        planner=planner,
        modes=modes,
        sharing=sharing,
        guard=guard,
        late_pods=late_pods,
        inventory=inventory,
    )
    return ClaimWork(preparer, repair)
