"""Memory limiter: sets how much of a GPU's memory pods may use, on GPUs whose driver enforces such limits.

In: steps of plans. Out: a limit on the cgroup of each of a claim's pods: the sum of what all claims of that pod have of
the GPU. Everything that concerns one GPU happens under its lock, which also holds between two agents. A limit ends with
its cgroup, so neither a reboot nor a lost ledger leaves one behind.
Source: NVIDIA, "MPS v3 Memory Partitioning" (a limit holds for the processes of the cgroup and of those below it).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dra_driver.base.errors import ApiError, DriverError, HardwareError, LedgerError, Retry, SharingError
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import SharedDevice
from dra_driver.hardware.port import MemoryLimiting, MemoryLimitShowing
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import ClaimApi
from dra_driver.node.claims.allocated import check_shape, pods_of
from dra_driver.node.claims.plan import MemoryLimitStep
from dra_driver.node.ledger.access import tolerate_full_disk
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks, claim_lock
from dra_driver.node.ledger.record import UNFINISHED, ClaimRecord, ClaimState
from dra_driver.node.ledger.recorded_steps import RecordedLimit, RecordedStep
from dra_driver.node.neighbours.gone_claims import API_SECONDS
from dra_driver.node.prepare.steps.effects import StepPerformer, StepRun, UndoRun

# Pod cgroups: the cgroup of each pod on this node, found by its name below the kubelet's own cgroup.

_ROOT = re.compile(r"(.*-)?kubepods(\.slice)?")
_QOS = re.compile(r"(.*-)?(kubepods-)?(burstable|besteffort)(\.slice)?")
_POD = re.compile(r"(?:.*-)?pod(?P<uid>[0-9a-fA-F]{8}([-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})(\.slice)?")
_DEPTH = 4  # how many levels below the root are searched for the kubelet's cgroup, whose place is configurable


class PodCgroups:
    """The cgroups below `root`, which are read again in each call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kubepods: tuple[Path, ...] = ()

    def of(self, uids: Iterable[str]) -> dict[str, str]:
        """Return the folders of those pods that have one, by UID."""
        found = self.all()
        return {uid: found[uid] for uid in uids if uid in found}

    def all(self) -> dict[str, str]:
        """Return the folders of all pods, by UID."""
        if not self._kubepods or not all(path.is_dir() for path in self._kubepods):
            self._kubepods = tuple(_roots(self._root, _DEPTH))
        folders = [
            one for root in self._kubepods for one in (root, *(p for p in _below(root) if _QOS.fullmatch(p.name)))
        ]
        named = ((_POD.fullmatch(path.name), path) for folder in folders for path in _below(folder))
        return {match["uid"].replace("_", "-"): str(path) for match, path in named if match}


def _roots(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the kubelet's cgroups: normally one, but more if a kubelet in a container runs beside the node's own."""
    for path in _below(folder):
        if _ROOT.fullmatch(path.name):
            yield path
        elif depth > 1:
            yield from _roots(path, depth - 1)


def _below(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # the cgroup was removed while it was being read
        return []


log = logging.getLogger(__name__)

_GONE = ("hardware.gpu-lost", "hardware.memory-limit-unsupported")  # errors after which no limit is left to undo


@dataclass(frozen=True, slots=True)
class LostLimit:
    """A limit in bytes on a pod's memory of a GPU, which another program ended.

    `cgroup` is the pod's folder, `claims` are the claims from which the limit comes, and `problem` is the reason why
    it could not be set again ("" if it could).
    """

    device: str
    pod: str
    cgroup: str
    limit: int
    problem: str = ""
    claims: tuple[ClaimRecord, ...] = field(default=(), compare=False)

    @property
    def sentence(self) -> str:
        """Return what happened, in a sentence for the users of the pod."""
        what = f"the limit of {self.limit >> 20} MiB on the memory of {self.device} was ended by another program"
        if self.problem:
            return f"{what}, and can't be set again: {self.problem}"
        return f"{what}; it is set again, for memory that is allocated from now on"


class MemoryLimiter(StepPerformer[MemoryLimitStep, RecordedLimit]):
    """The memory limits on one node's GPUs."""

    kind = MemoryLimitStep.kind

    def __init__(
        self, hardware: object, ledger: Ledger, locks: NodeLocks, cgroups: PodCgroups, *, boot_id: str
    ) -> None:
        self._hardware, self._ledger, self._locks, self._cgroups = hardware, ledger, locks, cgroups
        self._boot_id = boot_id

    def intent(self, step: MemoryLimitStep) -> RecordedLimit:
        """Return the record of a limit that is to be set."""
        return RecordedLimit(step.device, step.limit, step.pods)

    def in_force(self, step: MemoryLimitStep, recorded: RecordedLimit) -> MemoryLimitStep:
        """Return the limit with which the claim was prepared, for its former and its present pods."""
        pods = tuple(dict.fromkeys((*recorded.pods, *step.pods)))
        return MemoryLimitStep(recorded.device, recorded.limit, pods)

    def left_in_force(self, recorded: RecordedLimit) -> MemoryLimitStep:
        """Return the limit with which the claim was prepared."""
        return MemoryLimitStep(recorded.device, recorded.limit, recorded.pods)

    def perform(self, step: MemoryLimitStep, recorded: RecordedLimit, run: StepRun) -> RecordedLimit:
        """Limit the claim's pods on this node, and return the record with these pods. Idempotent.

        Raises: SharingError("sharing.no-pod-cgroup", LATER) if no pod of it is here, HardwareError, PrepareError.
        """
        pods = self._limit(run.uid, step, run.deadline)
        return recorded if pods == recorded.pods else RecordedLimit(step.device, step.limit, pods)

    def join(self, uid: str, pods: Iterable[str], deadline: Deadline) -> None:
        """Limit more pods of a prepared claim, recording them first. The caller holds the claim's lock.

        Raises: as `perform`.
        """
        record = self._ledger.get(uid)
        if record is None or record.state in UNFINISHED:
            return
        joined = [
            replace(step, pods=tuple(dict.fromkeys((*step.pods, *pods)))) for step in record.steps_of(RecordedLimit)
        ]
        by_key = {step.key: step for step in joined}
        self._ledger.set_steps(
            uid, [by_key[step.key] if isinstance(step, RecordedLimit) else step for step in record.steps]
        )
        for step in joined:
            self._limit(uid, self.left_in_force(step), deadline)

    def undo(self, recorded: RecordedLimit, undoing: UndoRun) -> None:
        """Reduce the limits of the claim's pods to what their other claims have.

        Raises: HardwareError, PrepareError.
        """
        uid, device, deadline = undoing.uid, recorded.device, undoing.deadline
        with self._hold(device, deadline):
            if not self._ledger.is_read_only:
                with tolerate_full_disk("mark a claim"):
                    self._ledger.set_state(uid, ClaimState.UNPREPARING)  # so that this claim no longer counts
            others = self._of_others(uid, recorded.key)
            for pod, path in self._cgroups.of(recorded.pods).items():
                try:
                    self._set(device, path, others.get(pod), deadline)
                except HardwareError as error:
                    if error.code not in _GONE:
                        raise
                    log.warning("memory limit not removed", extra=fields(device=device.name, err=str(error)))

    def has_any(self) -> bool:
        """Return whether any claim has limits; true if the ledger can't be read."""
        try:
            return bool(self._ledger.with_step(RecordedLimit))
        except LedgerError:
            return True

    def recheck(self, deadline: Deadline) -> tuple[LostLimit, ...]:
        """Find the limits of prepared claims that another program ended, set them again, and return them.

        Nothing is checked if the hardware can't report its limits. Raises: LedgerError, PrepareError.
        """
        if not isinstance(self._hardware, MemoryLimitShowing) or self._ledger.is_read_only:
            return ()
        prepared = [one for one in self._ledger.with_step(RecordedLimit) if self._is_in_force(one)]
        devices = {step.key: step.device for record in prepared for step in record.steps_of(RecordedLimit)}
        return tuple(lost for device in devices.values() for lost in self._recheck(self._hardware, device, deadline))

    def _recheck(self, shown: MemoryLimitShowing, device: SharedDevice, deadline: Deadline) -> Iterator[LostLimit]:
        with self._hold(device, deadline):
            records = [one for one in self._ledger.with_step_on(RecordedLimit, device.name) if self._is_in_force(one)]
            owners: dict[str, list[ClaimRecord]] = {}
            for record in records:
                for pod in {p for s in record.steps_of(RecordedLimit) if s.key == device.name for p in s.pods}:
                    owners.setdefault(pod, []).append(record)
            sums = self._of_others("", device.name)
            for pod, path in self._cgroups.of(owners).items():
                limit = LostLimit(device.name, pod, path, sums.get(pod, 0), claims=tuple(owners[pod]))
                lost = self._lost(shown, device, limit, deadline)
                if lost is not None:
                    yield lost

    def _lost(
        self, shown: MemoryLimitShowing, device: SharedDevice, limit: LostLimit, deadline: Deadline
    ) -> LostLimit | None:
        """Return None if a limit is in force or its pod is gone; otherwise set it again and return it.

        If it can't be set, the returned limit has the problem.
        """
        lost = limit
        try:
            found = shown.memory_limit(device, limit.cgroup)
            if (found is not None and found <= limit.limit) or not Path(limit.cgroup).is_dir():
                return None
            self._set(device, limit.cgroup, limit.limit, deadline)
        except HardwareError as error:
            lost = replace(limit, problem=str(error))
        log.warning("memory limit was lost", extra=fields(device=device.name, file=limit.cgroup, err=lost.sentence))
        return lost

    def _is_in_force(self, record: ClaimRecord) -> bool:
        """Return whether a claim's limits were set in this boot and still apply."""
        return record.state not in UNFINISHED and record.boot_id == self._boot_id

    def _limit(self, uid: str, step: MemoryLimitStep, deadline: Deadline) -> tuple[str, ...]:
        """Limit a claim's pods on this node, and return these pods. Raises: as `perform`."""
        with self._hold(step.device, deadline):
            found = self._cgroups.of(step.pods)
            if not found:
                raise SharingError(
                    "no-pod-cgroup",
                    f"pod {', '.join(step.pods) or '(none)'} has no cgroup, so its memory on {step.device} "
                    "can't be limited",
                    hint="a kubelet without --cgroups-per-qos makes no cgroups for pods; remove `enforcement: hard`",
                    retry=Retry.LATER,
                )
            others = self._of_others(uid, step.key)
            for pod, path in found.items():
                self._set(step.device, path, step.limit + others.get(pod, 0), deadline)
        return tuple(found)

    # The callers of the methods below hold the GPU's lock.

    def _of_others(self, uid: str, device: str) -> dict[str, int]:
        """Return the sum of what claims other than `uid` have of a GPU, in bytes by pod."""
        sums: dict[str, int] = {}
        for record in self._ledger.with_step_on(RecordedLimit, device):
            if record.uid == uid or record.state == ClaimState.UNPREPARING:
                continue
            for step in record.steps_of(RecordedLimit):
                if step.key == device:
                    for pod in step.pods:
                        sums[pod] = sums.get(pod, 0) + step.limit
        return sums

    def _set(self, device: SharedDevice, cgroup: str, limit: int | None, deadline: Deadline) -> None:
        if not isinstance(self._hardware, MemoryLimiting):
            raise HardwareError(
                "memory-limit-unsupported", f"this agent's hardware backend can't limit the memory of {device}"
            )
        self._hardware.limit_memory(device, cgroup, limit, deadline.remaining())
        status = "none" if limit is None else f"{limit} bytes"
        log.info("memory limit set", extra=fields(device=device.name, file=cgroup, status=status))

    @contextmanager
    def _hold(self, device: SharedDevice, deadline: Deadline) -> Iterator[None]:
        with self._locks.hold([f"memory/{device.name}"], deadline):
            yield


# Late pods: pods that join a claim after it was prepared, and to which its memory limits apply too.

CHECK_SECONDS = 0.5
JOIN_SECONDS = 4.0  # how long limiting the new pods of one claim may take


class LatePods:
    """Looks for new pods twice a second, after `follow` or `resume` was called, as long as any claim has limits."""

    def __init__(
        self, ledger: Ledger, api: ClaimApi, cgroups: PodCgroups, locks: NodeLocks, limiter: MemoryLimiter
    ) -> None:
        self._ledger, self._api, self._cgroups, self._locks, self._limiter = ledger, api, cgroups, locks, limiter
        self._loop = Loop("late-pods", self._turn, failure="check for new pods failed", fault_s=CHECK_SECONDS)
        self._known: frozenset[str] = frozenset()

    def resume(self) -> None:
        """Start looking for new pods if claims that were prepared earlier have limits."""
        if self._limited():
            self._loop.resume()

    def follow(self, prepared: Iterable[RecordedStep]) -> None:
        """Look at once, and go on looking, if the steps of the claim that was just prepared include limits."""
        if any(isinstance(step, RecordedLimit) for step in prepared):
            self._loop.resume()

    def close(self) -> None:
        """End the thread."""
        self._loop.stop()

    @property
    def is_watching(self) -> bool:
        """Whether the thread is running."""
        return self._loop.is_running

    def check(self) -> bool:
        """Check once, and return whether any claim has limits. The API is asked only if there are new pods."""
        present = frozenset(self._cgroups.all())
        if present <= self._known:
            self._known = present
            return True
        records = self._limited()
        outcomes = [self._try_follow(record, present) for record in records]
        if all(outcomes):
            self._known = present
        return bool(records)

    def _turn(self) -> float | None:
        try:
            if self.check() or self._limited():
                return CHECK_SECONDS
        except DriverError as error:
            log.warning("cannot check for new pods", extra=fields(code=error.code, err=str(error)))
            return CHECK_SECONDS
        self._known = frozenset()  # so that all pods count as new after the next start
        return None

    def _limited(self) -> tuple[ClaimRecord, ...]:
        return self._ledger.with_step(RecordedLimit)

    def _try_follow(self, record: ClaimRecord, present: frozenset[str]) -> bool:
        """Limit the new pods of one claim as `_follow` does, but log errors, so that other claims are limited too."""
        try:
            return self._follow(record, present)
        except DriverError as error:
            log.warning(
                "cannot check for new pods", extra=fields(claim=record.full_name, code=error.code, err=str(error))
            )
            return False

    def _follow(self, record: ClaimRecord, present: frozenset[str]) -> bool:
        """Limit the pods that have joined a claim. Return False if the claim has to be read again."""
        if record.state in UNFINISHED:
            return False
        try:
            wire = self._api.get_claim(record.namespace, record.name, timeout_s=API_SECONDS)
        except ApiError as error:
            return error.code == NOT_FOUND
        check_shape(wire)
        if (wire.get("metadata") or {}).get("uid") != record.uid:
            return True
        known = {pod for step in record.steps_of(RecordedLimit) for pod in step.pods}
        joined = tuple(pod for pod in pods_of(wire) if pod in present and pod not in known)
        if not joined:
            return True
        try:
            self._limit(record.uid, joined)
        except DriverError as error:
            extra = fields(claim=record.full_name, code=error.code, err=str(error))
            log.warning("memory of a pod not limited yet", extra=extra)
            return False
        log.info("pod joined a claim with memory limits", extra=fields(claim=record.full_name, holder=joined[0]))
        return True

    def _limit(self, uid: str, pods: tuple[str, ...]) -> None:
        """Apply a prepared claim's memory limits to pods that joined it. Raises: DriverError."""
        deadline = Deadline.after(JOIN_SECONDS)
        with self._locks.hold([claim_lock(uid)], deadline):
            self._limiter.join(uid, pods, deadline)
