"""MemoryLimiter: how much of a GPU's memory pods may use, where the driver enforces it.

In: steps of plans. Out: a limit on the cgroup of each of a claim's pods, which is the sum of what all claims of that
pod have of the GPU. Everything that concerns one GPU happens under its lock, which also holds between two agents. A
limit disappears with its cgroup, so neither a reboot nor a lost ledger leaves one behind.
Source: NVIDIA, "MPS v3 Memory Partitioning" (a limit holds for the processes of the cgroup and of those below it).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dra_driver.claims.memory_limits import MemoryLimitStep, limit_step_of_record
from dra_driver.claims.plan import Step
from dra_driver.hardware.port import MemoryLimiting
from dra_driver.model.errors import HardwareError, Retry, SharingError
from dra_driver.model.sharing import SharedDevice
from dra_driver.model.wire import Wire
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.pod_cgroups import PodCgroups
from dra_driver.plugin.ledger.ledger import Ledger, as_far_as_there_is_room
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimState, Record
from dra_driver.plugin.locks import NodeLocks
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_GONE = ("hardware.gpu-lost", "hardware.memory-limit-unsupported")  # the limits went with the GPU or its driver


class MemoryLimiter:
    """The memory limits on one node's GPUs."""

    def __init__(self, hardware: object, ledger: Ledger, locks: NodeLocks, cgroups: PodCgroups) -> None:
        self._hardware, self._ledger, self._locks, self._cgroups = hardware, ledger, locks, cgroups

    def make(self, uid: str, step: MemoryLimitStep, deadline: Deadline) -> Wire:
        """Limit those of the claim's pods that are on this node, and return the step to record, which lists them.

        Idempotent.

        Raises: SharingError("sharing.no-pod-cgroup", LATER) when none of them is here, HardwareError, PrepareError.
        """
        with self._hold(step.device, deadline):
            found = self._cgroups.of(step.pods)
            if not found:
                raise SharingError(
                    "no-pod-cgroup",
                    f"no cgroup of pod {', '.join(step.pods) or '(none)'} is found, so its memory on "
                    f"{step.device} can't be limited",
                    hint="a kubelet without --cgroups-per-qos has no cgroups per pod; remove `enforcement: hard` there",
                    retry=Retry.LATER,
                )
            others = self._of_others(uid, step.key)
            for pod, path in found.items():
                self._set(step.device, path, step.limit + others.get(pod, 0), deadline)
        return replace(step, pods=tuple(found)).record()

    def join(self, uid: str, pods: Iterable[str], deadline: Deadline) -> None:
        """Limit more pods of a prepared claim, recording them first. The caller holds the claim's lock.

        Raises: as `make`.
        """
        record = self._ledger.get(uid)
        if record is None or record.state in UNFINISHED:
            return
        steps = [_with_pods(step, pods) if step.get("kind") == MemoryLimitStep.kind else step for step in record.steps]
        self._ledger.set_steps(uid, steps)
        for step in limit_steps(replace(record, steps=tuple(steps))):
            self.make(uid, step, deadline)

    def unmake(self, uid: str, recorded: Wire, deadline: Deadline) -> None:
        """Reduce the limits of the claim's pods to what their other claims have.

        Raises: HardwareError, PrepareError.
        """
        step = limit_step_of_record(recorded)
        with self._hold(step.device, deadline):
            if not self._ledger.is_read_only:
                with as_far_as_there_is_room("mark a claim"):
                    self._ledger.set_state(uid, ClaimState.UNPREPARING)  # other claims then no longer count this one
            others = self._of_others(uid, step.key)
            for pod, path in self._cgroups.of(step.pods).items():
                try:
                    self._set(step.device, path, others.get(pod), deadline)
                except HardwareError as error:
                    if error.code not in _GONE:
                        raise
                    log.warning("memory limit not removed", extra=fields(device=step.key, err=str(error)))

    # The methods below run under the GPU's lock

    def _of_others(self, uid: str, device: str) -> dict[str, int]:
        """Return, by pod, the sum of what other claims have of a GPU."""
        sums: dict[str, int] = {}
        for record in self._ledger.with_step_on(MemoryLimitStep.kind, device):
            if record.uid == uid or record.state == ClaimState.UNPREPARING:
                continue
            for step in limit_steps(record):
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
        said = "none" if limit is None else f"{limit} bytes"
        log.info("memory limit set", extra=fields(device=device.name, file=cgroup, status=said))

    @contextmanager
    def _hold(self, device: SharedDevice, deadline: Deadline) -> Iterator[None]:
        with self._locks.hold([f"memory/{device.name}"], deadline):
            yield


def limit_steps(record: Record) -> tuple[MemoryLimitStep, ...]:
    """Return the limits that a recorded claim has set."""
    return tuple(map(limit_step_of_record, record.steps_of(MemoryLimitStep.kind)))


def limits_in_force(steps: Sequence[Step], recorded: Iterable[Mapping[str, object]]) -> tuple[Step, ...]:
    """Return the steps of a plan with the limits that the claim was prepared with.

    The configuration may have changed since.
    """
    known = {str(r["key"]): limit_step_of_record(r) for r in recorded if r.get("kind") == MemoryLimitStep.kind}
    *others, last = [_joined(s, known.pop(s.key, s)) if isinstance(s, MemoryLimitStep) else s for s in steps]
    return (*others, *known.values(), last)


def _joined(planned: MemoryLimitStep, known: MemoryLimitStep) -> MemoryLimitStep:
    return replace(known, pods=tuple(dict.fromkeys((*known.pods, *planned.pods))))


def _with_pods(recorded: Wire, pods: Iterable[str]) -> Wire:
    return {**recorded, "pods": list(dict.fromkeys((*recorded["pods"], *pods)))}
