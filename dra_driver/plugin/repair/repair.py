"""Repair: corrects what crashes, reloaded GPU drivers and other programs have left behind, beside the kubelet's calls.

It never blocks a call: it waits only briefly, or not at all, for locks that a call holds. What could not be corrected
is logged and tried again in the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress

from dra_driver.cdi.store import CdiStore
from dra_driver.claims.allocated.claim_on_node import lost_devices
from dra_driver.inventory.offering import CurrentInventory
from dra_driver.model.errors import DriverError, PrepareError
from dra_driver.model.names import gpu_of_device, replicated_name
from dra_driver.plugin.deadline import BUDGET_SECONDS, Deadline
from dra_driver.plugin.effects.cdi_file import DriverCdiNames
from dra_driver.plugin.effects.device_metadata import DeviceMetadata
from dra_driver.plugin.effects.effects import Effects
from dra_driver.plugin.effects.late_pods import LatePods
from dra_driver.plugin.effects.sharing.holders import SharingHolders
from dra_driver.plugin.gpu_holds import with_replicas
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimState
from dra_driver.plugin.ledger.recorded_steps import RecordedPartition
from dra_driver.plugin.locks import NodeLocks, claim_lock, device_lock
from dra_driver.plugin.mig.mig_modes import MigModes
from dra_driver.plugin.node_claims.gone_claims import GoneClaims
from dra_driver.plugin.prepare.claim_undo import UNDO_SECONDS, ClaimUndo
from dra_driver.plugin.prepare.planner import Planner
from dra_driver.plugin.prepare.release_watch import ReleaseWatch
from dra_driver.plugin.repair.recovery import made_partitions
from dra_driver.plugin.steps.step_run import StepRun, UndoRun
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


class Repair:
    """Repairs the claims of one node. Any thread may call any method at any time, and repeat the call."""

    def __init__(
        self,
        boot_id: str,
        names: DriverCdiNames,
        *,
        ledger: Ledger,
        store: CdiStore,
        locks: NodeLocks,
        effects: Effects,
        undo: ClaimUndo,
        gone: GoneClaims,
        planner: Planner,
        modes: MigModes,
        sharing: SharingHolders,
        release_watch: ReleaseWatch,
        late_pods: LatePods,
        inventory: CurrentInventory,
        metadata: DeviceMetadata,
    ) -> None:
        self._boot_id, self._names, self._store, self._locks = boot_id, names, store, locks
        self.ledger, self._effects, self._undo, self._gone = ledger, effects, undo, gone
        self._planner, self._modes, self._sharing, self._inventory = planner, modes, sharing, inventory
        self._release_watch, self._late_pods, self._metadata = release_watch, late_pods, metadata

    def run(self) -> int:
        """Undo what a crash left half-done, and remove its temporary CDI files.

        Return how many claims were repaired. Raises: LedgerError.
        """
        repaired = self.ledger.settle()
        with suppress(PrepareError):  # the calls that need the folder will report that it is read-only
            self._store.sweep(self._names.file("").removesuffix(".json"))
        for uid in () if self.ledger.is_read_only else self.ledger.unfinished():
            try:
                repaired += self._undo.undo_unfinished(uid)
            except DriverError as error:
                log.warning("half-done claim not undone", extra=fields(claim_uid=uid, code=error.code, err=str(error)))
        self._sweep_metadata()
        self._late_pods.resume()
        self._release_watch.watch()
        return repaired

    def refresh_cdi(self) -> int:
        """Rewrite the CDI files of this boot's prepared claims if the device nodes or files in them have changed.

        Return how many files were rewritten. Raises: LedgerError.
        """
        if self.ledger.is_read_only:
            return 0
        changed = 0
        for stale in self.ledger.records():
            if stale.state != ClaimState.PREPARED or stale.boot_id != self._boot_id:
                continue
            try:
                changed += self._refresh(stale.uid)
            except DriverError as error:
                log.warning(
                    "CDI file not refreshed", extra=fields(claim=stale.full_name, code=error.code, err=str(error))
                )
        if changed:
            log.info("CDI files of prepared claims rewritten", extra=fields(count=changed))
        return changed

    def evict(self, uid: str) -> bool:
        """Unprepare a claim if it is abandoned, and return whether it was. Raises: DriverError."""
        return self._undo.evict(uid)

    def remove_orphan(self, uid: str) -> bool:
        """Remove the CDI file of a claim that the ledger does not know, and the partitions that the file lists.

        Return whether a file was removed. Raises: DriverError; the file then stays, because nothing else records the
        partitions.
        """
        with self._locks.hold([claim_lock(uid)], Deadline.after(0)):
            if self.ledger.get(uid) is not None:
                return False
            file = self._names.file(uid)
            made = tuple(made_partitions(self._store, file, uid))
            if made and self._gone.exists(uid):
                return False  # a container may be using them
            with self._hold(made):
                if self._are_held(made):
                    return False  # they were offered as an administrator's, and other claims have them now
                for gpu in self._effects.undo(made, UndoRun(uid, Deadline.after(UNDO_SECONDS))):
                    self.ledger.set_mode(gpu, None)
                return self._store.remove(file)

    def _hold(self, made: Collection[RecordedPartition]) -> AbstractContextManager[None]:
        """Return a context that holds these partitions and their replicas, unless a call works on them now."""
        names = (name for partition in made for name in with_replicas(partition.device))
        return self._locks.hold(map(device_lock, names), Deadline.after(0))

    def _are_held(self, made: Collection[RecordedPartition]) -> bool:
        """Return whether a claim holds one of these partitions, or a replica of it. Raises: LedgerError."""
        names = {partition.device for partition in made}
        holders = self.ledger.holders({gpu_of_device(name) for name in names})
        return any((replicated_name(held) or held) in names for held in holders)

    def settle_modes(self) -> None:
        """Switch off the MIG modes that this driver switched on for partitions which are all gone by now."""
        ours: Collection[str] = self.ledger.modes(self._boot_id)
        for gpu in {
            d.gpu.pci_address: d.gpu for d in self._inventory.current.devices if d.gpu.pci_address in ours
        }.values():
            try:
                self._modes.settle(gpu, Deadline.after(UNDO_SECONDS))
            except DriverError as error:
                log.warning("MIG mode not switched off", extra=fields(device=gpu.pci_address, err=str(error)))

    def settle_sharing(self) -> int:
        """Undo sharing that no claim holds any more, and end MPS daemons that belong to no effect.

        Return how many effects were undone and daemons ended.
        """
        return self._sharing.tidy()

    def _sweep_metadata(self) -> None:
        """Remove the metadata files of claims that the ledger does not know."""
        for uid in self._metadata.owners():
            if self.ledger.get(uid) is not None:
                continue
            # An error means that a call holds the claim's lock.
            with suppress(DriverError), self._locks.hold([claim_lock(uid)], Deadline.after(0)):
                if self.ledger.get(uid) is None:
                    self._metadata.remove(uid)

    def _refresh(self, uid: str) -> bool:
        """Rewrite one claim's file, and return whether it had to change. Raises: DriverError."""
        deadline = Deadline.after(BUDGET_SECONDS)
        with self._locks.hold([claim_lock(uid)], deadline):
            record, held = self.ledger.get_with_holds(uid)
            if record is None or record.state != ClaimState.PREPARED:
                return False
            if not record.was_lost and lost_devices(self._inventory.current, record.owned_names()):
                self.ledger.set_allocation(uid, record.with_loss())
            plan = self._planner.plan(record.claim())
            self.ledger.hold(uid, plan.occupied, held)
            run = StepRun(uid, self._effects.carried_over(plan.steps, record.steps), self.ledger, deadline)
            self._effects.refresh(plan.steps, run)
            return run.is_file_changed
