"""Preparer: intent, effect, commit, and the way back.

Prepare reads the claim, plans without effects, records the intent and the claim's holds in the ledger, carries out the
steps, and commits. Unprepare works from the ledger alone. Every step is idempotent, so both calls may be repeated, and
a crash between any two lines is repaired at the next start or by the next call. Locks are per claim and per device.
Source: Kubernetes DRA plugin contract (KEP-4381): per-claim errors, idempotency, no ordering between calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dra_driver.cdi.store import CdiStore
from dra_driver.claims.memory_limits import MemoryLimitStep
from dra_driver.claims.plan import PreparedDevice, PreparePlan
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.offering import Inventory
from dra_driver.model.errors import ClaimError, DriverError, PrepareError, Retry
from dra_driver.model.names import check_claim_uid
from dra_driver.model.wire import Wire
from dra_driver.mps.settings import MpsSupervisor
from dra_driver.plugin.deadline import BUDGET_SECONDS, HOLDER_SECONDS, Deadline
from dra_driver.plugin.effects.late_pods import LatePods
from dra_driver.plugin.effects.memory_limiter import MemoryLimiter
from dra_driver.plugin.effects.pod_cgroups import PodCgroups
from dra_driver.plugin.effects.sharing.effects import SharingEffects
from dra_driver.plugin.effects.sharing.holders import SharingHolders
from dra_driver.plugin.effects.steps import DriverCdiNames, Effects, carried_over, ends_with_power, is_only_file
from dra_driver.plugin.gone_claims import ClaimApi, GoneClaims
from dra_driver.plugin.guard import Guard
from dra_driver.plugin.ledger.conflicts import Conflict, by_holder
from dra_driver.plugin.ledger.ledger import Ledger, as_far_as_there_is_room
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimState, Record, owned, record_of_plan
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.mig.partitioner import Partitioner
from dra_driver.plugin.neighbours.leftovers import remove_leftover
from dra_driver.plugin.node_identity import NodeIdentity
from dra_driver.plugin.planning import Planner
from dra_driver.plugin.recovery import made_partitions
from dra_driver.plugin.running_pods import PROC
from dra_driver.plugin.separation import require_separation
from dra_driver.plugin.waiting import InterruptiblePause, Looks
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

PODS_DIR = Path("/var/lib/kubelet/pods")
CGROUPS = Path("/sys/fs/cgroup")
HOLDER_LOOK_SECONDS = 1.0  # how often waiting calls check whether the holder of a device still exists
UNDO_SECONDS = 4.0  # for undoing outside a call, or at the end of a call whose time is used up
EVICT_SECONDS = 2.0  # short, because no call should be at work on a deleted claim and others wait


class Preparer:
    """Prepares and unprepares claims. Any number of threads may call it, in each of two agents on one node."""

    def __init__(
        self,
        node: NodeIdentity,
        *,
        api: ClaimApi,
        ledger: Ledger,
        store: CdiStore,
        locks: NodeLocks,
        hardware: Hardware,
        inventory: Callable[[], Inventory],
        abandonment: GoneClaims | None = None,
        pods_dir: Path = PODS_DIR,
        proc: Path = PROC,
        gpu_changed: Callable[[GpuFacts], None] = lambda _: None,
        supervisor: MpsSupervisor | None = None,
        cgroups: Path = CGROUPS,
    ) -> None:
        self._node, self.ledger, self._store, self._locks = node, ledger, store, locks
        self._names = DriverCdiNames(node.driver)
        self._partitioner = Partitioner(hardware, locks, ledger, node.boot_id, changed=gpu_changed)
        self._sharer = SharingHolders(SharingEffects(hardware, supervisor), ledger, locks, node.boot_id)
        pods = PodCgroups(cgroups)
        self._limiter = MemoryLimiter(hardware, ledger, locks, pods)
        self._joiners = LatePods(ledger, api, pods, add=self._limit_more)
        self._effects = Effects(
            store,
            hardware,
            partitioner=self._partitioner,
            sharer=self._sharer,
            limiter=self._limiter,
            ledger=ledger,
        )
        self._inventory = inventory
        self._waiting, self._looks = InterruptiblePause(ledger.version), Looks(HOLDER_LOOK_SECONDS)
        self._planner = Planner(
            node,
            self._names,
            api=api,
            hardware=hardware,
            inventory=inventory,
            waiting=self._waiting,
            mig_on=lambda: ledger.modes(node.boot_id),
        )
        self._guard = Guard(ledger, node.boot_id, pods_dir, freed=self._waiting.wake, proc=proc)
        self._abandonment = abandonment or GoneClaims(node, api, ledger, hardware, inventory)

    # The kubelet's two calls

    def prepare(self, namespace: str, name: str, uid: str, deadline: Deadline) -> tuple[PreparedDevice, ...]:
        """Make a claim's devices usable, and return the devices that the kubelet is to pass on.

        Idempotent: a repeated call restores what is missing and returns the same devices. Devices that another claim
        holds are waited for, at most until the deadline.

        Raises: DriverError of any branch; the claim is then as if it had never been asked for, or as it was before.
        """
        check_claim_uid(uid)
        self.ledger.require_writable()
        started = time.monotonic()
        patience = deadline.sooner(HOLDER_SECONDS)
        with self.ledger.until(deadline):
            plan = self._planner.plan_when_possible(namespace, name, uid, deadline)
            while rivals := self._try(plan, deadline):
                self._await_release(plan, rivals, patience, started)
                plan = self._planner.plan_when_possible(namespace, name, uid, deadline)
        return plan.devices

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        """Undo everything that was done for a claim. Idempotent; an unknown claim is a success.

        Raises: DriverError; the claim's devices then stay held until a later call succeeds.
        """
        check_claim_uid(uid)
        with self.ledger.until(deadline), self._locks.hold([_claim_lock(uid)], deadline):
            record = self.ledger.get(uid)
            if record is None:
                remove_leftover(self._store.root, self._names.file(uid))
                return
            with self._locks.hold(_device_locks(record), deadline):
                self._undo(record, deadline)

    # At the start, and besides the calls

    def repair(self) -> int:
        """Undo what a crash left half-done, and remove its temporary CDI files.

        Return the number of claims repaired.
        """
        repaired = self.ledger.settle()
        with suppress(PrepareError):  # the calls that need the folder report that it is read-only
            self._store.sweep(self._names.file("").removesuffix(".json"))
        for uid in () if self.ledger.is_read_only else self.ledger.unfinished():
            try:
                repaired += self._mend(uid)
            except DriverError as error:
                log.warning("half-done claim not undone", extra=fields(claim_uid=uid, code=error.code, err=str(error)))
        self._joiners.resume()
        self._guard.watch()
        return repaired

    def refresh_cdi(self) -> int:
        """Rewrite the CDI files of this boot's prepared claims where nodes or files changed.

        Return how many changed.
        """
        if self.ledger.is_read_only:
            return 0
        changed = 0
        for stale in self.ledger.records():
            if stale.state != ClaimState.PREPARED or stale.boot_id != self._node.boot_id:
                continue
            try:
                with self._locks.hold([_claim_lock(stale.uid)], Deadline.after(BUDGET_SECONDS)):
                    record = self.ledger.get(stale.uid)
                    if record is not None and record.state == ClaimState.PREPARED:
                        plan = self._planner.plan(record.claim())
                        self.ledger.hold(record.uid, plan.occupied)
                        changed += self._effects.refresh(plan.steps, carried_over(_planned(plan), record.steps))
            except DriverError as error:
                log.warning(
                    "CDI file not refreshed", extra=fields(claim=stale.full_name, code=error.code, err=str(error))
                )
        if changed:
            log.info("CDI files of prepared claims rewritten", extra=fields(count=changed))
        return changed

    def evict(self, uid: str) -> bool:
        """Unprepare a claim if it is abandoned, and return whether it was. Raises: DriverError."""
        record = self.ledger.get(uid)
        if record is None or not self._abandonment.is_abandoned(record):
            return False
        log.warning(
            "claim was deleted but not unprepared, undoing it", extra=fields(claim=record.full_name, claim_uid=uid)
        )
        self.unprepare(uid, Deadline.after(EVICT_SECONDS))
        return True

    def _mend(self, uid: str) -> bool:
        """Undo a claim if it is half-done and no call is at work on it. Return whether it was. Raises: DriverError."""
        with self._locks.hold([_claim_lock(uid)], Deadline.after(0)):
            record = self.ledger.get(uid)
            if record is None or record.state not in UNFINISHED:
                return False
            self._undo(record, Deadline.after(UNDO_SECONDS))
        log.info("half-done claim undone", extra=fields(claim=record.full_name, claim_uid=uid))
        return True

    def remove_orphan(self, uid: str) -> bool:
        """Remove the CDI file of a claim that the ledger does not know, and the partitions that the file lists.

        Return whether a file was removed. Raises: DriverError; the file then stays, because only it records the
        partitions.
        """
        with self._locks.hold([_claim_lock(uid)], Deadline.after(0)):
            if self.ledger.get(uid) is not None:
                return False
            file = self._names.file(uid)
            made = tuple(made_partitions(self._store, file, uid))
            if made and self._abandonment.exists(uid):
                return False  # a container may be using them
            self._effects.undo(uid, made, Deadline.after(UNDO_SECONDS))
            return self._store.remove(file)

    def settle_modes(self) -> None:
        """Switch MIG mode off where it is on only for partitions of ours that are all gone."""
        noted = self.ledger.modes(self._node.boot_id)
        for gpu in {d.gpu.pci_address: d.gpu for d in self._inventory().devices if d.gpu.pci_address in noted}.values():
            try:
                self._partitioner.settle(gpu, Deadline.after(UNDO_SECONDS))
            except DriverError as error:
                log.warning("MIG mode not switched off", extra=fields(device=gpu.pci_address, err=str(error)))

    def settle_sharing(self) -> int:
        """Undo sharing that no claim holds any more, and end MPS daemons that belong to no effect.

        Return their number.
        """
        return self._sharer.tidy()

    def close(self) -> None:
        """Make waiting calls give up now, and end the threads."""
        self._waiting.close()
        self._guard.close()
        self._joiners.close()

    # Effects

    def _try(self, plan: PreparePlan, deadline: Deadline) -> tuple[Conflict, ...]:
        """Prepare the claim, unless other claims hold a device: then return those and change nothing."""
        claim = plan.claim
        with self._locks.hold([_claim_lock(claim.uid)], deadline):
            record = self.ledger.get(claim.uid)
            locks = _device_locks(record) if record else []
            with self._locks.hold([*locks, *(_device_lock(d.device) for d in owned(claim))], deadline):
                if record is not None and self._repeat(record, plan, deadline):
                    return ()
                if record is not None:
                    self._undo(record, deadline)
                require_separation(plan, self.ledger.effects)
                return self._begin(plan, deadline)

    def _repeat(self, record: Record, plan: PreparePlan, deadline: Deadline) -> bool:
        """Restore a claim that was prepared before; return False when it has to be undone and prepared again."""
        claim = plan.claim
        if record.state in UNFINISHED:
            return False
        is_recovered = record.state == ClaimState.RECOVERED and record.claim().is_of_same_devices(claim)
        if not is_recovered and not record.claim().is_same_allocation(claim):
            return False
        steps = carried_over(_planned(plan), record.steps)
        is_rebuilt = self._effects.apply(record.uid, plan.steps, steps, deadline)
        if is_recovered:
            new = replace(record_of_plan(plan, self._node.boot_id, steps), state=ClaimState.PREPARED)
            self.ledger.complete(new, claim, plan.occupied)
            return True
        self.ledger.hold(record.uid, plan.occupied)
        if tuple(steps) != record.steps:
            self.ledger.set_steps(record.uid, steps)
        if more := set(claim.pods).difference(pods := record.allocation.get("pods") or ()):
            self.ledger.set_allocation(record.uid, {**record.allocation, "pods": [*pods, *sorted(more)]})
        if record.boot_id != self._node.boot_id:
            self.ledger.set_boot(record.uid, self._node.boot_id)
            log.info("claim rebuilt after a reboot", extra=fields(claim=record.full_name, claim_uid=record.uid))
        elif is_rebuilt:
            log.info("CDI file written again", extra=fields(claim=record.full_name, claim_uid=record.uid))
        return True

    def _begin(self, plan: PreparePlan, deadline: Deadline) -> tuple[Conflict, ...]:
        steps = list(self._effects.look(plan.steps, deadline))
        intent = record_of_plan(plan, self._node.boot_id, steps)
        rivals = self.ledger.intend(intent, plan.claim, plan.occupied, is_synced=not ends_with_power(steps))
        if not rivals:
            self._finish(intent, plan, steps, deadline)
        return rivals

    def _finish(self, intent: Record, plan: PreparePlan, steps: list[Wire], deadline: Deadline) -> None:
        """Carry out the steps and commit; after an error, undo them."""
        try:
            self._effects.apply(intent.uid, plan.steps, steps, deadline)
            self.ledger.commit(intent.uid, steps)
            if any(isinstance(step, MemoryLimitStep) for step in plan.steps):
                self._joiners.watch()
        except Exception:
            undo_by = deadline if deadline.remaining() > UNDO_SECONDS else Deadline.after(UNDO_SECONDS)
            # What can't be undone now is undone by the next call or at the next start.
            with suppress(DriverError), self.ledger.until(undo_by):
                self._undo(replace(intent, steps=tuple(steps)), undo_by)
            raise

    def _limit_more(self, uid: str, pods: tuple[str, ...]) -> None:
        """Apply a prepared claim's memory limits to pods that joined it. Raises: DriverError."""
        deadline = Deadline.after(UNDO_SECONDS)
        with self._locks.hold([_claim_lock(uid)], deadline):
            self._limiter.join(uid, pods, deadline)

    def _undo(self, record: Record, deadline: Deadline) -> None:
        """Undo a recorded claim and forget it. A read-only ledger keeps the row: undoing again does no harm.

        A claim that only wrote a file is not marked as being undone: after a crash before it is forgotten it counts as
        prepared with its file missing, which `refresh_cdi` restores; the kubelet has no answer and asks again.
        """
        if self.ledger.is_read_only:
            self._effects.undo(record.uid, record.steps, deadline)
            return
        if record.state not in UNFINISHED and not is_only_file(record.steps):
            with as_far_as_there_is_room("mark a claim"):
                is_synced = not ends_with_power(record.steps)
                self.ledger.set_state(record.uid, ClaimState.UNPREPARING, is_synced=is_synced)
        self._effects.undo(record.uid, record.steps, deadline)
        pods = self._guard.pods_left(record)
        self.ledger.forget(record, pods)
        if pods:
            self._guard.watch()
        self._waiting.wake()

    # Waiting

    def _await_release(
        self, plan: PreparePlan, rivals: tuple[Conflict, ...], patience: Deadline, started: float
    ) -> None:
        """Wait until no other claim holds the devices, evicting holders that were deleted for good.

        Raises: ClaimError("claim.device-in-use") with the device and its holder when the patience ends.
        """
        for device, rival in by_holder(rivals):
            log.info(
                "device held by another claim, waiting",
                extra=fields(claim_uid=plan.claim.uid, device=device, holder=rival.record.full_name),
            )
        while rivals:
            seen = self._waiting.seen
            self._look_at_holders(rivals)
            if patience.has_passed() or self._waiting.is_over:
                raise _in_use(rivals, time.monotonic() - started)
            self._waiting.await_change(min(HOLDER_LOOK_SECONDS, patience.remaining()), seen)
            rivals = self.ledger.rivals(plan.claim, plan.occupied, boot_id=self._node.boot_id)

    def _look_at_holders(self, rivals: tuple[Conflict, ...]) -> None:
        """Undo holders that are half-done with no call at work on them, or that were deleted for good."""
        if any(rival.pods for rival in rivals):
            self._guard.watch()  # the agent that kept the device back may be gone
        for record in {rival.record.uid: rival.record for rival in rivals if not rival.pods}.values():
            if not self._looks.is_due(record.uid):
                continue
            with suppress(PrepareError):  # another call is at work on it, or it can't be undone: it keeps the device
                if record.state in UNFINISHED:
                    self._mend(record.uid)
                else:
                    self.evict(record.uid)


def _planned(plan: PreparePlan) -> tuple[Wire, ...]:
    return tuple(step.record() for step in plan.steps)


def _in_use(rivals: tuple[Conflict, ...], waited_s: float) -> ClaimError:
    held = "; ".join(_holder(device, rival) for device, rival in by_holder(rivals))
    return ClaimError(
        "device-in-use",
        f"still held after {waited_s:.0f} s: {held}",
        hint="a device is free once the kubelet has unprepared its claim: look for a pod that does not terminate",
        retry=Retry.LATER,
    )


def _holder(device: str, rival: Conflict) -> str:
    claim = f"claim {rival.record.full_name} (UID {rival.record.uid})"
    if rival.pods:
        return f"{device} by containers of pod {', '.join(rival.pods)}, which used it through {claim}, now unprepared"
    return f"{device} by {claim}"


def _claim_lock(uid: str) -> str:
    return f"claim/{uid}"


def _device_lock(device: str) -> str:
    return f"device/{device}"


def _device_locks(record: Record) -> list[str]:
    return [_device_lock(device) for device in record.owned_names()]
