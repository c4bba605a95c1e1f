"""Preparer: records the intent for a claim, carries it out and commits it, and undoes it all in Unprepare.

Prepare reads the claim, plans without effects, records the intent and the claim's holds in the ledger, carries out the
steps, and commits. Unprepare works from the ledger alone. Every step is idempotent, so both calls may be repeated, and
a crash between any two lines is repaired at the next start or by the next call. Locks are per claim and per device.
Source: Kubernetes DRA plugin contract (KEP-4381): per-claim errors, idempotency, no ordering between calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import suppress

from dra_driver.claims.plan import PreparedDevice, PreparePlan
from dra_driver.model.errors import DriverError
from dra_driver.model.names import check_claim_uid
from dra_driver.plugin.deadline import HOLDER_SECONDS, Deadline
from dra_driver.plugin.effects.effects import Effects
from dra_driver.plugin.effects.late_pods import LatePods
from dra_driver.plugin.effects.sharing.separation import require_separation
from dra_driver.plugin.gpu_holds import GpuHolds
from dra_driver.plugin.ledger.conflicts import Conflict
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimRecord, ClaimState, record_of_plan
from dra_driver.plugin.ledger.recorded_steps import ends_with_power, is_only_file
from dra_driver.plugin.locks import NodeLocks, claim_lock, device_lock
from dra_driver.plugin.prepare.claim_undo import UNDO_SECONDS, ClaimUndo
from dra_driver.plugin.prepare.device_wait import DeviceWait
from dra_driver.plugin.prepare.planner import Planner
from dra_driver.plugin.steps.step_run import StepRun
from dra_driver.telemetry.logs import fields
from dra_driver.validation.validation_lock import ValidationLock

log = logging.getLogger(__name__)


class Preparer:
    """Prepares and unprepares claims. Any number of threads may call it, in each of two agents on one node."""

    def __init__(
        self,
        boot_id: str,
        *,
        ledger: Ledger,
        locks: NodeLocks,
        gpus: GpuHolds,
        planner: Planner,
        effects: Effects,
        undo: ClaimUndo,
        wait: DeviceWait,
        late_pods: LatePods,
        validation: ValidationLock,
    ) -> None:
        self._boot_id, self._ledger, self._locks, self._planner = boot_id, ledger, locks, planner
        self._effects, self._undo, self._wait, self._late_pods = effects, undo, wait, late_pods
        self._validation, self._gpus = validation, gpus

    def prepare(self, namespace: str, name: str, uid: str, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        """Make a claim's devices usable, and return the devices that the kubelet is to pass on.

        Idempotent: a repeated call restores what is missing and returns the same devices. While another claim holds a
        device, the call waits for it.

        Args:
            namespace: the namespace of the ResourceClaim.
            name: the name of the ResourceClaim.
            uid: the UID of the ResourceClaim; a claim of the same name with another UID is refused.
            deadline: when the call has to end, which is before the kubelet stops waiting for its answer.

        Returns: for each allocated device of this driver its request, pool, name, CDI ids and share id.

        Raises: ApiError, ClaimError, HardwareError, LedgerError, NodeError, PrepareError or SharingError. The claim is
        then as if this call had never been made.
        """
        check_claim_uid(uid)
        self._ledger.require_writable()
        started = time.monotonic()
        patience = deadline.sooner(HOLDER_SECONDS)
        with self._ledger.until(deadline):
            plan = self._planner.plan_when_possible(namespace, name, uid, deadline)
            while conflicts := self._try(plan, deadline):
                self._wait.await_release(plan, conflicts, patience, started)
                plan = self._planner.plan_when_possible(namespace, name, uid, deadline)
        return plan.devices

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undo everything that was done for a claim. Idempotent: a claim that the ledger does not know is no error.

        The API server is not asked. `deadline` is when the call has to end.

        Raises: the same errors as `prepare`, except ApiError and ClaimError. The claim's devices then stay held until a
        later call succeeds.
        """
        check_claim_uid(uid)
        self._undo.unprepare(uid, deadline)

    def close(self) -> None:
        """Make waiting calls give up now, and end the threads."""
        self._wait.close()
        self._late_pods.close()

    def _try(self, plan: PreparePlan, deadline: Deadline) -> tuple[Conflict, ...]:
        """Prepare the claim; if other claims hold a device, return those claims and change nothing."""
        claim = plan.claim
        own = {device.device for device in claim.devices if not device.is_admin}
        with self._locks.hold([claim_lock(claim.uid)], deadline):
            record, held = self._ledger.get_with_holds(claim.uid)
            names = own.union(record.owned_names() if record else ())
            names |= self._gpus.devices_of_steps(plan.steps, record.steps if record else ())
            with self._locks.hold(map(device_lock, names), deadline):
                deadline.require_caller()
                if record is not None and self._repeat(record, held, plan, deadline):
                    return ()
                if record is not None:
                    self._undo.undo(record, deadline)
                require_separation(plan, self._ledger.effects)
                return self._begin(plan, deadline)

    def _repeat(self, record: ClaimRecord, held: Collection[str], plan: PreparePlan, deadline: Deadline) -> bool:
        """Restore a claim that was prepared before; return False if it has to be undone and prepared again."""
        claim = plan.claim
        if record.state in UNFINISHED:
            return False
        is_recovered = record.state == ClaimState.RECOVERED and record.claim().is_of_same_devices(claim)
        if not is_recovered and not record.claim().is_same_allocation(claim):
            return False
        run = self._run(record, plan, deadline)
        self._effects.restore(plan.steps, run)
        if is_recovered:
            new = record_of_plan(plan, self._boot_id, run.recorded, ClaimState.PREPARED)
            self._ledger.complete(new, claim, plan.occupied)
        else:
            self._ledger.hold(record.uid, plan.occupied, held)
            self._update(record, plan, run)
        return True

    def _run(self, record: ClaimRecord, plan: PreparePlan, deadline: Deadline) -> StepRun:
        """Return a run of the plan's steps that starts from the claim's record."""
        return StepRun(record.uid, self._effects.carried_over(plan.steps, record.steps), self._ledger, deadline)

    def _update(self, record: ClaimRecord, plan: PreparePlan, run: StepRun) -> None:
        """Record what a repeated call found to be different. Most repeated calls write nothing."""
        if run.recorded != record.steps:
            self._ledger.set_steps(record.uid, run.recorded)
        if more := set(plan.claim.pods).difference(record.pods):
            self._ledger.set_allocation(record.uid, record.with_pods(sorted(more)))
        if record.boot_id != self._boot_id:
            self._ledger.set_boot(record.uid, self._boot_id)
            log.info("claim rebuilt after a reboot", extra=fields(claim=record.full_name, claim_uid=record.uid))
        elif run.is_file_changed:
            log.info("CDI file written again", extra=fields(claim=record.full_name, claim_uid=record.uid))

    def _begin(self, plan: PreparePlan, deadline: Deadline) -> tuple[Conflict, ...]:
        """Record the intent and carry it out; if other claims hold a device, return those claims and change nothing.

        A claim that needs only a file is recorded as prepared at once, in one transaction. After a crash before the
        file was written, `refresh_cdi` writes it, and the kubelet, which got no answer, asks again.
        """
        steps = self._effects.inspect(plan.steps, deadline)
        state = ClaimState.PREPARED if is_only_file(steps) else ClaimState.PREPARING
        record = record_of_plan(plan, self._boot_id, steps, state)
        is_synced = state is ClaimState.PREPARED or not ends_with_power(steps)
        conflicts = self._ledger.intend(record, plan.claim, plan.occupied, is_synced=is_synced)
        if not conflicts:
            self._finish(record, plan, deadline)
        return conflicts

    def _finish(self, record: ClaimRecord, plan: PreparePlan, deadline: Deadline) -> None:
        """Carry out the steps, and commit unless the record has the claim as prepared; if that fails, undo them."""
        run = StepRun(record.uid, record.steps, self._ledger, deadline)
        try:
            # No test of these devices begins any more, because the intent is recorded.
            self._validation.interrupt([device.device for device in plan.claim.devices])
            self._effects.apply(plan.steps, run)
            if record.state != ClaimState.PREPARED:
                self._ledger.commit(record.uid, run.recorded if run.is_changed else None)
            self._late_pods.follow(record.steps)
        except Exception:
            undo_by = deadline if deadline.remaining() > UNDO_SECONDS else Deadline.after(UNDO_SECONDS)
            # What can't be undone now is undone by the next call or at the next start.
            with suppress(DriverError), self._ledger.until(undo_by):
                unanswered = record._replace(state=ClaimState.PREPARING, steps=run.recorded)
                self._undo.undo(unanswered, undo_by)
            raise
