"""Claim undo: undoes claims, from the ledger alone.

These are the claims that the kubelet unprepares, those that a crash left half-done, and those that were deleted for
good. Every step is idempotent: what failed, or was interrupted by a crash, is undone by the next call or at the next
start. A claim's devices stay held until everything is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager

from dra_driver.cdi.store import CdiStore
from dra_driver.model.errors import DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.cdi_file import DriverCdiNames
from dra_driver.plugin.effects.device_metadata import DeviceMetadata
from dra_driver.plugin.effects.effects import Effects
from dra_driver.plugin.gpu_holds import GpuHolds
from dra_driver.plugin.ledger.access import tolerate_full_disk
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimRecord, ClaimState
from dra_driver.plugin.ledger.recorded_steps import ends_with_power, is_only_file
from dra_driver.plugin.locks import NodeLocks, claim_lock, device_lock
from dra_driver.plugin.node_claims.gone_claims import GoneClaims
from dra_driver.plugin.other_drivers.leftovers import remove_leftover
from dra_driver.plugin.prepare.interruptible_pause import InterruptiblePause
from dra_driver.plugin.prepare.release_watch import ReleaseWatch
from dra_driver.plugin.steps.step_run import UndoRun
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

UNDO_SECONDS = 4.0  # how long undoing may take outside a call, or at the end of a call whose time is used up
EVICT_SECONDS = 2.0  # likewise for a deleted claim: short, because no call should be working on it and others wait


class ClaimUndo:
    """Undoes recorded claims of one node, and wakes the calls that wait for their devices."""

    def __init__(
        self,
        ledger: Ledger,
        locks: NodeLocks,
        effects: Effects,
        store: CdiStore,
        names: DriverCdiNames,
        *,
        gpus: GpuHolds,
        metadata: DeviceMetadata,
        release_watch: ReleaseWatch,
        gone: GoneClaims,
        waiting: InterruptiblePause,
    ) -> None:
        self._ledger, self._locks, self._gpus, self._effects = ledger, locks, gpus, effects
        self._store, self._names, self._metadata = store, names, metadata
        self._release_watch, self._gone, self._waiting = release_watch, gone, waiting

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undo a claim. If the ledger does not know it, remove what another driver left for it. Idempotent.

        Raises: DriverError.
        """
        with self._ledger.until(deadline), self._locks.hold([claim_lock(uid)], deadline):
            deadline.require_caller()
            record, alone_on = self._ledger.get_with_modes(uid)
            if record is None:
                remove_leftover(self._store.root, self._names.file(uid))
                return
            with self._hold_devices(record, deadline):
                deadline.require_caller()
                self.undo(record, deadline, alone_on)

    def evict(self, uid: str) -> bool:
        """Unprepare a claim if it is abandoned, and return whether it was. Raises: DriverError."""
        record = self._ledger.get(uid)
        if record is None or not self._gone.is_abandoned(record):
            return False
        log.warning(
            "claim was deleted but not unprepared; it is undone now",
            extra=fields(claim=record.full_name, claim_uid=uid),
        )
        self.unprepare(uid, Deadline.after(EVICT_SECONDS))
        return True

    def undo_unfinished(self, uid: str) -> bool:
        """Undo a claim if it is half-done and no call is working on it; return whether it was undone.

        Raises: DriverError.
        """
        with self._locks.hold([claim_lock(uid)], Deadline.after(0)):
            record = self._ledger.get(uid)
            if record is None or record.state not in UNFINISHED:
                return False
            with self._hold_devices(record, Deadline.after(UNDO_SECONDS)):
                self.undo(record, Deadline.after(UNDO_SECONDS))
        log.info("half-done claim undone", extra=fields(claim=record.full_name, claim_uid=uid))
        return True

    def undo(self, record: ClaimRecord, deadline: Deadline, alone_on: Collection[str] = ()) -> None:
        """Undo a recorded claim and remove its record. The caller holds the claim and its devices. Raises: DriverError.

        `alone_on` are GPUs that, as the caller has read, no other claim has a part of (`UndoRun`). If the ledger is
        read-only, the row stays; undoing the claim again does no harm.

        A claim is not marked as being undone if no other call depends on that: if only a file was written for it, or if
        it has the only partition of a GPU. After a crash before its record is removed, such a claim counts as prepared,
        with its file or partition missing: `refresh_cdi` restores the file, and the kubelet, which got no answer, asks
        again. If a partition could not be destroyed, the claim is marked after all.
        """
        undoing = UndoRun(record.uid, deadline, alone_on=set(alone_on))
        nodes = self._release_watch.nodes_of(record)
        if self._ledger.is_read_only:
            self._undo_effects(record, undoing)
            return
        if nodes:  # first, because the claim's file, which names them, may be gone when the undoing goes on
            with tolerate_full_disk("record the device nodes of a claim"):
                self._release_watch.note_nodes(record, nodes)
        is_marked = record.state in UNFINISHED or self._effects.needs_mark(record.steps, undoing)
        if is_marked:
            self._mark(record)
        try:
            modes_off = self._undo_effects(record, undoing)
        except DriverError:
            if not is_marked and not is_only_file(record.steps):
                self._mark(record)
            raise
        pods = self._release_watch.pods_left(record)
        self._ledger.forget(record, pods, modes_off, nodes)
        if pods or nodes:
            self._release_watch.watch()
        self._waiting.wake()

    def _hold_devices(self, record: ClaimRecord, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context that holds the devices of a claim, and those of the GPUs that it has whole."""
        names = {*record.owned_names(), *self._gpus.devices_of_steps((), record.steps)}
        return self._locks.hold(map(device_lock, names), deadline)

    def _mark(self, record: ClaimRecord) -> None:
        """Mark a claim in the ledger as being undone, unless its record already shows that it is not prepared."""
        if record.state not in UNFINISHED:
            with tolerate_full_disk("mark a claim"):
                is_synced = not ends_with_power(record.steps)
                self._ledger.set_state(record.uid, ClaimState.UNPREPARING, is_synced=is_synced)

    def _undo_effects(self, record: ClaimRecord, undoing: UndoRun) -> Collection[str]:
        """Undo a claim's steps, then remove its metadata files.

        Return the GPUs whose MIG mode was switched off (`Effects.undo`). Raises: DriverError.
        """
        modes_off = self._effects.undo(record.steps, undoing)
        self._metadata.remove(record.uid)
        return modes_off
