"""Preparer: records the intent for a claim, carries it out and commits it, and undoes it all in Unprepare.

Prepare reads the claim, plans without effects, records the intent and the claim's holds in the ledger, carries out the
steps, and commits. Unprepare works from the ledger alone. Every step is idempotent, so both calls may be repeated, and
a crash between any two lines is repaired at the next start or by the next call. Locks are per claim and per device.
Source: Kubernetes DRA plugin contract (KEP-4381): per-claim errors, idempotency, no ordering between calls.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from dra_driver.base.errors import GPU_LOST, NODE_MISSING, ApiError, ClaimError, DriverError, HardwareError, Retry
from dra_driver.base.machine import HOLDER_SECONDS, NODE_SECONDS, Deadline, FifoCache
from dra_driver.base.names import check_claim_uid
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.facts import Edits, merge
from dra_driver.hardware.port import AdminNodes, ChannelOffering, ClaimWide, Hardware, Partitionable, Roots
from dra_driver.hardware.vfio import api_node
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import ClaimApi
from dra_driver.node.claims.allocated import (
    AllocatedClaim,
    ClaimOnNode,
    decode_claim,
    devices_of,
    join_claim,
    refuse_lost,
)
from dra_driver.node.claims.plan import PreparedDevice, PreparePlan, plan_prepare
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import CurrentInventory, NodeIdentity
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import GpuHolds, NodeLocks, ValidationLock, claim_lock, device_lock
from dra_driver.node.ledger.record import UNFINISHED, ClaimRecord, ClaimState, record_of_plan
from dra_driver.node.ledger.recorded_steps import ends_with_power, is_only_file
from dra_driver.node.ledger.unreleased import Conflict
from dra_driver.node.prepare.release_watch import InterruptiblePause
from dra_driver.node.prepare.steps.effects import Effects, StepRun
from dra_driver.node.prepare.steps.memory_limiter import LatePods
from dra_driver.node.prepare.steps.sharing import require_separation
from dra_driver.node.prepare.undo import UNDO_SECONDS, ClaimUndo, DeviceWait

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
                unanswered = replace(record, state=ClaimState.PREPARING, steps=run.recorded)
                self._undo.undo(unanswered, undo_by)
            raise


# Planner: reads a claim and plans its preparation, waiting for what is not there yet.

POLL_SECONDS = 0.1  # between two readings of the inventory
_UNKNOWN = "claim.device-unknown"
LATE_SECONDS = 6.0  # enough for a new device, which is in the inventory within 5 s, and for a new permission
API_SECONDS = 10.0  # how long one request may take
_API_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
MAX_UNKNOWN = 1024  # claims of devices that this node does not have


class Planner:
    """Plans claims for one node."""

    def __init__(
        self,
        node: NodeIdentity,
        *,
        api: ClaimApi,
        hardware: Hardware,
        inventory: CurrentInventory,
        waiting: InterruptiblePause,
        ledger: Ledger,
        roots: Roots,
        has_metadata: bool,
    ) -> None:
        self._node, self._api, self._has_metadata = node, api, has_metadata
        self._inventory, self._waiting = inventory, waiting
        self._edits = ClaimEdits(hardware, roots)
        self._ledger = ledger
        # By UID: whether a call waited for a device in vain.
        self._unknown: FifoCache[str, bool] = FifoCache(MAX_UNKNOWN)

    def plan_when_possible(self, namespace: str, name: str, uid: str, deadline: Deadline) -> PreparePlan:
        """Read the claim and plan it; if that fails, try again as long as that can help and there is time.

        Only the first call for a claim waits for a device that this node does not have.

        Raises: ApiError, ClaimError or HardwareError, whichever came last.
        """
        patience = _Patience(deadline)
        attempt = 0
        claim: AllocatedClaim | None = None
        while True:
            try:
                claim = claim or self._read(namespace, name, uid, deadline)
                devices = self._devices(claim)
                # If health is watched, a lost GPU stays published, with a taint, for the claims that hold it.
                refuse_lost(claim, [name for name, device in devices.items() if device.gpu.is_lost])
                return self._plan(claim, devices)
            except (ApiError, ClaimError, HardwareError) as error:
                is_unknown = error.code == _UNKNOWN
                limit = None if is_unknown and self._unknown.get(uid) else patience.until(error)
                pause = POLL_SECONDS if claim else _API_PAUSES[min(attempt, len(_API_PAUSES) - 1)]
                if isinstance(error, ApiError):
                    pause = max(pause, error.retry_after_s)
                if limit is None or limit.remaining() <= pause or self._waiting.is_over:
                    if is_unknown:
                        self._unknown.keep(uid, True)
                    raise
            attempt += 1
            self._waiting.pause(pause)

    def plan(self, claim: AllocatedClaim) -> PreparePlan:
        """Return a plan from the current inventory and device nodes, without a call of the vendor's library.

        Raises: ClaimError("claim.partition-missing") for admin access to a partition that does not exist,
        ("claim.no-admin-access") to a GPU for virtual machines; HardwareError.
        """
        return self._plan(claim, self._devices(claim))

    def _devices(self, claim: AllocatedClaim) -> dict[str, Device]:
        return devices_of(claim, self._inventory.current, self._node.pool)

    def _plan(self, claim: AllocatedClaim, devices: dict[str, Device]) -> PreparePlan:
        on_node = join_claim(claim, devices)
        may_switch_modes = any(device.counter_set and device.placement is None for device in devices.values())
        return plan_prepare(
            on_node,
            self._edits.of_devices(on_node),
            self._edits.common(on_node),
            self._node.driver,
            mig_on=self._ledger.modes(self._node.boot_id) if may_switch_modes else (),
            has_metadata=self._has_metadata,
        )

    def _read(self, namespace: str, name: str, uid: str, deadline: Deadline) -> AllocatedClaim:
        timeout_s = min(API_SECONDS, max(0.1, deadline.remaining()))
        try:
            wire = self._api.get_claim(namespace, name, timeout_s=timeout_s)
        except ApiError as error:
            if error.code == NOT_FOUND:
                raise ClaimError("not-found", f"claim {namespace}/{name} does not exist") from error
            raise
        return decode_claim(wire, driver=self._node.driver, uid=uid)


class _Patience:
    """Until when one call tries again after each kind of error: for some time after the error first came."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._until: dict[str, Deadline] = {}

    def until(self, error: DriverError) -> Deadline | None:
        """Return the time until which trying again makes sense, or None if it does not."""
        seconds = _worth_waiting(error)
        if seconds is None:
            return None
        return self._until.setdefault(error.code, self._deadline.sooner(seconds))


def _worth_waiting(error: DriverError) -> float | None:
    """Return for how many seconds trying again makes sense, or None if it does not."""
    if isinstance(error, ApiError):
        return {Retry.NOW: math.inf, Retry.LATER: LATE_SECONDS, Retry.NEVER: None}[error.retry]
    if isinstance(error, HardwareError):
        seconds = {NODE_MISSING: NODE_SECONDS, GPU_LOST: None}.get(error.code, math.inf)
        return None if error.retry is Retry.NEVER else seconds
    return {
        "claim.hardware-waiting": math.inf,
        _UNKNOWN: LATE_SECONDS,
        "claim.partition-missing": LATE_SECONDS,
    }.get(error.code)


# Claim edits: the container edits for each device of a claim, and for all of them together, from the hardware.

_WITHOUT_DRIVER = (DeviceType.VFIO, DeviceType.IMEX_CHANNEL)  # device types that need nothing of the GPU driver


class ClaimEdits:
    """The edits of claims on one node, from its hardware and its device nodes below `roots`."""

    def __init__(self, hardware: Hardware, roots: Roots) -> None:
        self._hardware, self._roots = hardware, roots
        self._claim_wide = hardware if isinstance(hardware, ClaimWide) else None  # the check would slow down each call

    def of_devices(self, on_node: ClaimOnNode) -> dict[str, Edits]:
        """Return the edits of each device that no step creates, by name.

        Raises: ClaimError("claim.partition-missing") for admin access to a partition that does not exist,
        ("claim.no-admin-access") to a GPU for virtual machines; HardwareError.
        """
        made, edits = on_node.made, dict[str, Edits]()
        for claimed in on_node.results:
            name = claimed.device.name
            if name not in made:
                try:
                    known = edits[name] if name in edits else self._of_device(claimed.device, on_node.claim)
                except HardwareError as error:
                    error.message = f"device {name}: {error.message}"
                    raise
                edits[name] = self._with_admin_nodes(known, claimed.device) if claimed.result.is_admin else known
        return edits

    def common(self, on_node: ClaimOnNode) -> Edits:
        """Return the edits that the claim needs once, for all of its devices.

        A virtual machine needs nothing of the host's GPU driver, nor does a channel, which a pod has beside GPUs.
        """
        parts = [self._hardware.common_edits()]
        devices = {claimed.device.name: claimed.device for claimed in on_node.results}.values()
        if self._claim_wide is not None:
            parts.append(self._claim_wide.claim_edits([one.gpu for one in devices if one.type is not DeviceType.VFIO]))
        if all(device.type in _WITHOUT_DRIVER for device in devices):
            parts = [Edits(env=part.env) for part in parts]
        if machines := [claimed.iommu for claimed in on_node.results if claimed.device.type is DeviceType.VFIO]:
            backends = sorted({machine.prefers_iommufd for machine in machines if machine.has_api_device})
            nodes = (api_node(self._roots, prefers_iommufd=backend) for backend in backends)
            parts.append(Edits(device_nodes=tuple(nodes)))
        return merge(parts) if len(parts) > 1 else parts[0]

    def _with_admin_nodes(self, edits: Edits, device: Device) -> Edits:
        if device.type in _WITHOUT_DRIVER or not isinstance(self._hardware, AdminNodes):
            return edits
        return merge((edits, self._hardware.admin_edits(device.gpu)))

    def _of_device(self, device: Device, claim: AllocatedClaim) -> Edits:
        if device.type is DeviceType.VFIO:
            raise ClaimError(
                "no-admin-access",
                f"claim {claim.namespace}/{claim.name} has admin access to {device.name}, a GPU for virtual machines",
                hint='select devices of other types: .type != "vfio"; admin access takes no GPU from its driver',
            )
        if device.type is DeviceType.IMEX_CHANNEL:
            return self._hardware.channel_edits() if isinstance(self._hardware, ChannelOffering) else Edits()
        partition = device.partition
        if device.placement is not None and partition is None and isinstance(self._hardware, Partitionable):
            profile, start = device.placement.profile, device.placement.start
            partition = self._hardware.placement_now(device.gpu, profile, start).partition
        if device.placement is not None and partition is None:
            raise ClaimError(
                "partition-missing",
                f"claim {claim.namespace}/{claim.name} has admin access to {device.name}, which does not exist now",
                hint="admin access never makes a partition; this one exists while a claim that owns it is prepared",
                retry=Retry.LATER,
            )
        return self._hardware.device_edits(device.gpu, partition)
