"""Preparer: intent, effect, commit; and the way back.

Prepare reads the claim, plans without effects, takes hold of the devices in the ledger (the intent), carries out the
steps, commits. Unprepare works from the ledger alone. Every step is idempotent, so that both may be repeated, and a
crash between any two lines is repaired at the next start or the next call. Locks are per claim and per device.
Source: Kubernetes DRA plugin contract (KEP-4381): per-claim errors, idempotency, no ordering between calls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dra_driver.cdi.store import CdiStore
from dra_driver.claims.allocated import AllocatedClaim, decode_claim
from dra_driver.claims.plan import PreparedDevice, PreparePlan, devices_of, plan_prepare
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.device import Inventory
from dra_driver.model.errors import ApiError, ClaimError, DriverError, HardwareError, PrepareError, Retry
from dra_driver.model.names import check_claim_uid
from dra_driver.plugin.abandoned import Abandonment, ClaimApi
from dra_driver.plugin.deadline import BUDGET_SECONDS, HOLDER_SECONDS, Deadline
from dra_driver.plugin.effects import DriverCdiNames, Effects
from dra_driver.plugin.ledger import Ledger, Rival
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.record import UNFINISHED, Record, State, owned, record_of_plan
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1  # how often a waiting call looks again
LATE_DEVICE_SECONDS = 6.0  # a device that appears late is in the inventory within 5 s
_API_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)


@dataclass(frozen=True, slots=True)
class Node:
    """Who we are: the driver's name, the pool of this node, the boot that we run in."""

    driver: str
    pool: str
    boot_id: str


class Preparer:
    """Prepares and unprepares claims; any number of threads, two agents on one node."""

    def __init__(
        self,
        node: Node,
        *,
        api: ClaimApi,
        ledger: Ledger,
        store: CdiStore,
        locks: NodeLocks,
        hardware: Hardware,
        inventory: Callable[[], Inventory],
        abandonment: Abandonment | None = None,
    ) -> None:
        self._node, self._api, self.ledger, self._locks = node, api, ledger, locks
        self._hardware, self._inventory = hardware, inventory
        self._names = DriverCdiNames(node.driver)
        self._effects = Effects(store)
        self._store = store
        self.abandonment = abandonment or Abandonment(
            api, ledger, hardware, inventory, driver=node.driver, boot_id=node.boot_id
        )
        self._freed = threading.Condition()
        self._is_closing = False

    # The kubelet's two calls

    def prepare(self, namespace: str, name: str, uid: str, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        """Make a claim's devices usable, and say what the kubelet is to pass on.

        Raises: DriverError of every branch; the claim is then as if never asked for, or what it was before.
        """
        check_claim_uid(uid)
        self.ledger.require_writable()
        started = time.monotonic()
        patience = deadline.sooner(HOLDER_SECONDS)
        plan = self._plan_when_possible(namespace, name, uid, deadline)
        while rivals := self._try(plan, deadline):
            self._await_release(plan.claim, rivals, patience, started)
            plan = self._plan_when_possible(namespace, name, uid, deadline)
        return plan.devices

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undo everything that was done for a claim; an unknown claim is a success. Raises: DriverError."""
        check_claim_uid(uid)
        with self._locks.hold([_claim_lock(uid)], deadline):
            record = self.ledger.get(uid)
            if record is None:
                return
            with self._locks.hold(_device_locks(record), deadline):
                self._undo(record)

    # At the start, and beside the calls

    def repair(self) -> int:
        """Undo what a crash left half-done, and what crashed writers left in the CDI folder. Gives the count."""
        repaired = 0
        with suppress(PrepareError):  # a read-only folder is told by the calls that need it
            self._store.sweep(self._names.file("").removesuffix(".json"))
        for uid in self.ledger.unfinished():
            try:
                with self._locks.hold([_claim_lock(uid)], Deadline.after(0)):  # held: another agent is at work on it
                    record = self.ledger.get(uid)
                    if record is not None and record.state in UNFINISHED:
                        self._undo(record)
                        repaired += 1
                        log.info("half-done claim undone", extra=fields(claim=record.full_name, claim_uid=uid))
            except DriverError as error:
                log.warning("half-done claim not undone", extra=fields(claim_uid=uid, code=error.code, err=str(error)))
        return repaired

    def refresh_cdi(self) -> int:
        """Write the CDI files of this boot's prepared claims again where nodes or files changed. Gives the count."""
        if self.ledger.is_read_only:
            return 0
        changed = 0
        for stale in self.ledger.records():
            if stale.state != State.PREPARED or stale.boot_id != self._node.boot_id:
                continue
            try:
                with self._locks.hold([_claim_lock(stale.uid)], Deadline.after(BUDGET_SECONDS)):
                    record = self.ledger.get(stale.uid)
                    if record is not None and record.state == State.PREPARED:
                        changed += self._effects.apply(self._plan(record.claim()).steps)
            except DriverError as error:
                log.warning(
                    "CDI file not refreshed", extra=fields(claim=stale.full_name, code=error.code, err=str(error))
                )
        if changed:
            log.info("CDI files of prepared claims rewritten", extra=fields(count=changed))
        return changed

    def evict(self, uid: str) -> bool:
        """Unprepare a claim if it is abandoned. Says whether it was. Raises: DriverError."""
        record = self.ledger.get(uid)
        if record is None or not self.abandonment.is_abandoned(record):
            return False
        log.warning("claim is gone for good, undoing it", extra=fields(claim=record.full_name, claim_uid=uid))
        self.unprepare(uid, Deadline.after(BUDGET_SECONDS))
        return True

    def remove_orphan(self, uid: str) -> bool:
        """Remove the CDI file of a claim that the ledger does not know. Raises: DriverError."""
        with self._locks.hold([_claim_lock(uid)], Deadline.after(0)):
            return self.ledger.get(uid) is None and self._store.remove(self._names.file(uid))

    def close(self) -> None:
        """Let calls that wait give up now."""
        with self._freed:
            self._is_closing = True
            self._freed.notify_all()

    # Planning

    def _plan_when_possible(self, namespace: str, name: str, uid: str, deadline: Deadline) -> PreparePlan:
        """Read the claim and plan; wait out an API that does not answer, and hardware that is not there yet."""
        late = deadline.sooner(LATE_DEVICE_SECONDS)
        attempt = 0
        claim: AllocatedClaim | None = None
        while True:
            try:
                claim = claim or self._read_claim(namespace, name, uid)
                return self._plan(claim)
            except ApiError as error:
                limit = deadline if _is_transient(error) else None
                failed: DriverError = error
            except HardwareError as error:
                limit = deadline if error.retry is not Retry.NEVER else None
                failed = error
            except ClaimError as error:
                limit = {"claim.hardware-waiting": deadline, "claim.device-unknown": late}.get(error.code)
                failed = error
            pause = _API_PAUSES[min(attempt, len(_API_PAUSES) - 1)] if claim is None else POLL_SECONDS
            attempt += 1
            if limit is None or limit.remaining() <= pause or self._is_closing:
                raise failed
            self._pause(pause)

    def _read_claim(self, namespace: str, name: str, uid: str) -> AllocatedClaim:
        try:
            wire = self._api.get_claim(namespace, name)
        except ApiError as error:
            if error.status == 404:
                raise ClaimError("not-found", f"claim {namespace}/{name} does not exist") from error
            raise
        return decode_claim(wire, driver=self._node.driver, uid=uid)

    def _plan(self, claim: AllocatedClaim) -> PreparePlan:
        """Plan from the inventory and the device nodes as they are now; no call into the vendor's library."""
        foreign = sorted({d.pool for d in claim.devices} - {self._node.pool})
        if foreign:
            raise ClaimError(
                "other-pool",
                f"claim {claim.namespace}/{claim.name} has devices of pool {', '.join(foreign)}, "
                f"this node's pool is {self._node.pool}",
            )
        devices = devices_of(claim, self._inventory())
        edits = {name: self._hardware.device_edits(d.gpu, d.partition) for name, d in devices.items()}
        return plan_prepare(claim, devices, edits, self._hardware.common_edits(), self._names)

    # Effects

    def _try(self, plan: PreparePlan, deadline: Deadline) -> tuple[Rival, ...]:
        """Prepare, unless other claims hold a device: those are given back, and nothing is changed."""
        claim = plan.claim
        with self._locks.hold([_claim_lock(claim.uid)], deadline):
            record = self.ledger.get(claim.uid)
            locks = _device_locks(record) if record else []
            with self._locks.hold([*locks, *(_device_lock(d.device) for d in owned(claim))], deadline):
                if record is not None and self._repeat(record, plan):
                    return ()
                if record is not None:
                    self._undo(record)
                return self._begin(plan)

    def _repeat(self, record: Record, plan: PreparePlan) -> bool:
        """Make good a claim that was prepared before; False when it has to be undone and prepared anew."""
        claim = plan.claim
        if record.state == State.RECOVERED and _same_devices(record.claim(), claim):
            intent = record_of_plan(plan, self._node.boot_id)
            self.ledger.complete(intent, claim)
            self._finish(intent, plan)
            return True
        if record.state in UNFINISHED or not record.claim().is_same_allocation(claim):
            return False
        is_rebuilt = self._effects.apply(plan.steps)
        if record.boot_id != self._node.boot_id:
            self.ledger.set_boot(record.uid, self._node.boot_id)
            log.info("claim rebuilt after a reboot", extra=fields(claim=record.full_name, claim_uid=record.uid))
        elif is_rebuilt:
            log.info("CDI file written again", extra=fields(claim=record.full_name, claim_uid=record.uid))
        return True

    def _begin(self, plan: PreparePlan) -> tuple[Rival, ...]:
        intent = record_of_plan(plan, self._node.boot_id)
        rivals = self.ledger.intend(intent, plan.claim)
        if not rivals:
            self._finish(intent, plan)
        return rivals

    def _finish(self, intent: Record, plan: PreparePlan) -> None:
        """Carry out the steps and commit; on a fault leave nothing behind."""
        try:
            self._effects.apply(plan.steps)
            self.ledger.set_state(intent.uid, State.PREPARED)
        except DriverError:
            with suppress(DriverError):  # what can't be undone now is undone by the next call, or the next start
                self._undo(intent)
            raise

    def _undo(self, record: Record) -> None:
        """Undo a recorded claim and forget it. A read-only ledger keeps the row: undoing again does no harm."""
        if self.ledger.is_read_only:
            self._effects.undo(record.steps)
            return
        if record.state != State.UNPREPARING:
            self.ledger.set_state(record.uid, State.UNPREPARING)
        self._effects.undo(record.steps)
        self.ledger.forget(record.uid)
        with self._freed:
            self._freed.notify_all()

    # Waiting

    def _await_release(
        self, claim: AllocatedClaim, rivals: tuple[Rival, ...], patience: Deadline, started: float
    ) -> None:
        """Wait until no other claim holds the devices, evicting holders that are gone for good.

        Raises: ClaimError("claim.device-in-use") naming device and holder when patience ends.
        """
        looked_at = 0.0
        while rivals:
            if time.monotonic() - looked_at >= 1.0:
                looked_at = time.monotonic()
                for uid in {rival.record.uid for rival in rivals}:
                    self.evict(uid)
            if patience.has_passed() or self._is_closing:
                raise _in_use(rivals, time.monotonic() - started)
            self._pause(min(POLL_SECONDS, patience.remaining()))
            rivals = self.ledger.rivals(claim)

    def _pause(self, seconds: float) -> None:
        """Sleep, but wake when a claim was unprepared here, or the agent ends."""
        with self._freed:
            if not self._is_closing:
                self._freed.wait(seconds)


def _is_transient(error: ApiError) -> bool:
    return error.retry is Retry.NOW or error.status in (0, 429) or error.status >= 500


def _same_devices(left: AllocatedClaim, right: AllocatedClaim) -> bool:
    return {(d.device, d.share_id) for d in left.devices} == {(d.device, d.share_id) for d in right.devices}


def _in_use(rivals: tuple[Rival, ...], waited_s: float) -> ClaimError:
    held = "; ".join(sorted(f"{r.device} by claim {r.record.full_name} (UID {r.record.uid})" for r in rivals))
    return ClaimError(
        "device-in-use",
        f"still held after {waited_s:.0f} s: {held}",
        hint="a device is free once the kubelet has unprepared its claim: look for a pod that does not terminate",
        retry=Retry.LATER,
    )


def _claim_lock(uid: str) -> str:
    return f"claim/{uid}"


def _device_lock(device: str) -> str:
    return f"device/{device}"


def _device_locks(record: Record) -> list[str]:
    return [_device_lock(d["device"]) for d in record.allocation.get("devices") or () if "device" in d]
