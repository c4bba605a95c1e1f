"""Claim undo: undoes claims, from the ledger alone.

These are the claims that the kubelet unprepares, those that a crash left half-done, and those that were deleted for
good. Every step is idempotent: what failed, or was interrupted by a crash, is undone by the next call or at the next
start. A claim's devices stay held until everything is undone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress

from dra_driver.base.errors import ClaimError, DriverError, PrepareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.claims.metadata import DeviceMetadata
from dra_driver.node.claims.plan import PreparePlan
from dra_driver.node.ledger.access import tolerate_full_disk
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import GpuHolds, NodeLocks, claim_lock, device_lock
from dra_driver.node.ledger.record import UNFINISHED, ClaimRecord, ClaimState
from dra_driver.node.ledger.recorded_steps import (
    ends_with_power,
    is_only_file,
)
from dra_driver.node.ledger.unreleased import Conflict, by_holder
from dra_driver.node.neighbours.allocations import remove_leftover
from dra_driver.node.neighbours.gone_claims import GoneClaims
from dra_driver.node.prepare.release_watch import CheckTimer, InterruptiblePause, ReleaseWatch
from dra_driver.node.prepare.steps.effects import Effects, UndoRun

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
        driver: str,
        *,
        gpus: GpuHolds,
        metadata: DeviceMetadata,
        release_watch: ReleaseWatch,
        gone: GoneClaims,
        waiting: InterruptiblePause,
    ) -> None:
        self._ledger, self._locks, self._gpus, self._effects = ledger, locks, gpus, effects
        self._store, self._driver, self._metadata = store, driver, metadata
        self._release_watch, self._gone, self._waiting = release_watch, gone, waiting

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undo a claim. If the ledger does not know it, remove what another driver left for it. Idempotent.

        Raises: DriverError.
        """
        with self._ledger.until(deadline), self._locks.hold([claim_lock(uid)], deadline):
            deadline.require_caller()
            record, alone_on = self._ledger.get_with_modes(uid)
            if record is None:
                remove_leftover(self._store.root, cdi.claim_file(self._driver, uid))
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


# Device wait: calls wait here until no other claim holds their devices; holders that no longer exist are undone.

HOLDER_CHECK_SECONDS = 1.0  # between two checks whether the holder of a device still exists


class DeviceWait:
    """The waiting calls of one agent."""

    def __init__(
        self, ledger: Ledger, boot_id: str, pause: InterruptiblePause, *, undo: ClaimUndo, release_watch: ReleaseWatch
    ) -> None:
        self._ledger, self._boot_id, self._pause, self._undo, self._release_watch = (
            ledger,
            boot_id,
            pause,
            undo,
            release_watch,
        )
        self._checks = CheckTimer(HOLDER_CHECK_SECONDS)

    def await_release(
        self, plan: PreparePlan, conflicts: tuple[Conflict, ...], patience: Deadline, started: float
    ) -> None:
        """Wait until no other claim holds the devices; evict holders that were deleted for good.

        `started` is when the call began, in seconds of monotonic time.

        Raises: ClaimError("claim.device-in-use"), which names the device and its holder, if the time for waiting is up;
        at once if the holder's GPU was lost meanwhile, because its pods don't end by themselves.
        """
        for device, conflict in by_holder(conflicts):
            log.info(
                "device held by another claim, waiting",
                extra=fields(claim_uid=plan.claim.uid, device=device, holder=conflict.record.full_name),
            )
        _refuse_returned(conflicts)
        while conflicts:
            seen = self._pause.seen
            self._look_at_holders(conflicts)
            if patience.has_passed() or self._pause.is_over:
                raise _in_use(conflicts, time.monotonic() - started)
            self._pause.await_change(min(HOLDER_CHECK_SECONDS, patience.remaining()), seen)
            conflicts = self._ledger.conflicts(plan.claim, plan.occupied, boot_id=self._boot_id)

    def close(self) -> None:
        """Make waiting calls give up now, and end the threads."""
        self._pause.close()
        self._release_watch.close()

    def _look_at_holders(self, conflicts: tuple[Conflict, ...]) -> None:
        """Undo holders that were deleted for good, and half-done holders on which no call is working."""
        if any(conflict.is_unprepared for conflict in conflicts):
            self._release_watch.watch()  # the agent that has watched these devices so far may have ended
        holders = {conflict.record.uid: conflict.record for conflict in conflicts if not conflict.is_unprepared}
        for record in holders.values():
            if not self._checks.is_due(record.uid):
                continue
            with suppress(PrepareError):  # another call works on it, or it can't be undone: it still holds the device
                if record.state in UNFINISHED:
                    self._undo.undo_unfinished(record.uid)
                else:
                    self._undo.evict(record.uid)


def _refuse_returned(conflicts: tuple[Conflict, ...]) -> None:
    """Refuse to wait for holders whose GPU was lost and came back. Raises: ClaimError("claim.device-in-use")."""
    lost = [(device, one.record) for device, one in by_holder(conflicts) if one.record.was_lost]
    if not lost:
        return
    device, record = lost[0]
    raise ClaimError(
        "device-in-use",
        f"still held: {device} by claim {record.full_name} (UID {record.uid}), whose GPU was lost and came back",
        hint=f"delete the pods that use claim {record.full_name}: their programs can't use the GPU any more",
        retry=Retry.LATER,
    )


def _in_use(conflicts: tuple[Conflict, ...], waited_s: float) -> ClaimError:
    held = "; ".join(_holder(device, conflict) for device, conflict in by_holder(conflicts))
    return ClaimError(
        "device-in-use",
        f"still held after {waited_s:.0f} s: {held}",
        hint="a device is free once the kubelet has unprepared its claim: look for a pod that does not terminate",
        retry=Retry.LATER,
    )


def _holder(device: str, conflict: Conflict) -> str:
    claim = f"claim {conflict.record.full_name} (UID {conflict.record.uid})"
    if conflict.users:
        return (
            f"{device} by {', '.join(conflict.users)}, which has it open through {claim}, now unprepared; end that "
            f"container, or, if its process can't harm the next one, run dra-driver release {device} --force there"
        )
    if conflict.pods:
        return (
            f"{device} by containers of pod {', '.join(conflict.pods)}, which used it through {claim}, now unprepared"
        )
    if conflict.is_unprepared:
        return f"{device} by containers that may have it through {claim}, now unprepared"
    return f"{device} by {claim}"
