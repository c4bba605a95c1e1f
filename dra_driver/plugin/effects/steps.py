"""Effects: carries out a plan's steps and undoes recorded ones, each idempotent by reading back the current state.

This is the only place where `claims` (what to do) and `cdi` (how a file is written) meet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.cdi import ids
from dra_driver.cdi.spec import render
from dra_driver.cdi.store import CdiStore
from dra_driver.claims.memory_limits import MemoryLimitStep
from dra_driver.claims.plan import CdiFileStep, MigModeStep, MigPartitionStep, Step
from dra_driver.claims.sharing_plan import SharingStep
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware
from dra_driver.model.edits import Edits
from dra_driver.model.errors import DriverError, HardwareError, PrepareError, Retry
from dra_driver.model.wire import Wire
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.memory_limiter import MemoryLimiter, limits_in_force
from dra_driver.plugin.effects.sharing.holders import SharingHolders, in_force, with_sharing
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.mig.partitioner import US, Partitioner

OWNER_ENV = "DRA_DRIVER_PARTITION"
NODE_SECONDS = 2.0  # how long to wait for the device nodes of a new partition
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class DriverCdiNames:
    """The CDI names of one driver, in the form that plans use."""

    driver: str

    @property
    def kind(self) -> str:
        """Return the CDI kind of all devices that this driver prepares."""
        return ids.kind(self.driver)

    def file(self, uid: str) -> str:
        """Return the name of a claim's CDI file."""
        return ids.claim_file(self.driver, uid)

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the name of a device within that file."""
        return ids.device_name(uid, device, share_id)

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the fully qualified id of that device."""
        return ids.device_id(self.driver, uid, device, share_id)


class Effects:
    """The effects of steps on this node."""

    def __init__(
        self,
        store: CdiStore,
        hardware: Hardware,
        *,
        partitioner: Partitioner,
        sharer: SharingHolders,
        limiter: MemoryLimiter,
        ledger: Ledger,
    ) -> None:
        self._store, self._hardware, self._ledger = store, hardware, ledger
        self._partitioner, self._sharer, self._limiter = partitioner, sharer, limiter

    def look(self, steps: Iterable[Step], deadline: Deadline) -> tuple[Wire, ...]:
        """Return what is to be recorded before anything is done.

        Raises: HardwareError, SharingError for what would be refused only after a partition was made.
        """
        steps = tuple(steps)
        for step in steps:
            if isinstance(step, SharingStep) and step.made:
                self._sharer.require(step, deadline)
        return tuple(
            self._partitioner.look(s) if isinstance(s, (MigModeStep, MigPartitionStep)) else s.record() for s in steps
        )

    def apply(self, uid: str, steps: Iterable[Step], recorded: list[Wire], deadline: Deadline) -> bool:
        """Carry out the steps in order and return whether the CDI file had to change.

        What they made is kept in `recorded`.

        Idempotent: a step whose effect is in place already changes nothing.

        Raises: ClaimError, HardwareError, PrepareError, SharingError.
        """
        changed = False
        steps = limits_in_force(in_force(tuple(steps), recorded), recorded)
        made: dict[str, tuple[GpuFacts, PartitionFacts, Wire]] = {}
        for step in steps:
            if isinstance(step, CdiFileStep):
                changed |= self._write(step, made, _sharing(steps, recorded), deadline.sooner(NODE_SECONDS))
                continue
            index = _index_of(step, recorded)
            if isinstance(step, SharingStep):
                partition = made[step.made][1] if step.made else None
                recorded[index] = self._sharer.make(uid, step, recorded[index], partition, deadline)
                continue
            if isinstance(step, MemoryLimitStep):
                recorded[index] = self._limiter.make(uid, step, deadline)
                continue

            def note(intent: Wire, index: int = index) -> None:
                recorded[index] = intent
                self._ledger.set_steps(uid, recorded)

            if isinstance(step, MigModeStep):
                recorded[index] = self._partitioner.make_whole(step, recorded[index], deadline, note=note)
                continue
            partition, recorded[index] = self._partitioner.make(step, recorded[index], deadline, note=note)
            made[step.device] = (step.gpu, partition, recorded[index])
        return changed

    def refresh(self, steps: Iterable[Step], recorded: Sequence[Wire]) -> bool:
        """Rewrite the CDI file from the current state, and return whether it had to change. Nothing is made.

        Raises: HardwareError, PrepareError.
        """
        steps = in_force(tuple(steps), recorded)
        made: dict[str, tuple[GpuFacts, PartitionFacts, Wire]] = {}
        for step in steps:
            if isinstance(step, MigPartitionStep):
                partition = self._partitioner.find(step)
                if partition is None:
                    raise HardwareError("partition-missing", f"partition {step.device} is gone", retry=Retry.LATER)
                made[step.device] = (step.gpu, partition, recorded[_index_of(step, list(recorded))])
        sharing, patience = _sharing(steps, recorded), Deadline.after(0)
        return any(self._write(step, made, sharing, patience) for step in steps if isinstance(step, CdiFileStep))

    def undo(self, uid: str, steps: Iterable[Wire], deadline: Deadline) -> None:
        """Undo recorded steps, last first. Idempotent.

        Raises: HardwareError, PrepareError, after every other step was undone; "prepare.step-unknown" for a step that a
        newer agent recorded.
        """
        unknown: list[str] = []
        fault: DriverError | None = None
        shared: set[str] = set()
        for step in reversed(tuple(steps)):
            try:
                if step.get("kind") == CdiFileStep.kind:
                    self._store.remove(step["file"])
                elif step.get("kind") == SharingStep.kind:
                    shared.add(step["key"])
                    self._sharer.unmake(uid, step, deadline)
                    shared.remove(step["key"])
                elif step.get("kind") == MigPartitionStep.kind:
                    if step["key"] not in shared:  # otherwise its daemon still runs; the next call ends that first
                        self._partitioner.unmake(uid, step, deadline)
                elif step.get("kind") == MemoryLimitStep.kind:
                    self._limiter.unmake(uid, step, deadline)
                elif step.get("kind") == MigModeStep.kind:
                    self._partitioner.restore(step, deadline)
                else:
                    unknown.append(str(step.get("kind")))
            except DriverError as error:
                fault = fault or error
        if fault is not None:
            raise fault
        if unknown:
            raise PrepareError(
                "step-unknown",
                f"a newer agent recorded steps that this one can't undo: {', '.join(unknown)}",
                hint="run the newer agent again",
                retry=Retry.LATER,
            )

    def _write(
        self,
        step: CdiFileStep,
        made: Mapping[str, tuple[GpuFacts, PartitionFacts, Wire]],
        sharing: Sequence[tuple[SharingStep, Wire]],
        patience: Deadline,
    ) -> bool:
        edits = dict(step.devices)
        for name, device in step.made.items():
            gpu, partition, recorded = made[device]
            found = self._edits_of(gpu, partition, patience)
            edits[name] = replace(found, env=(*found.env, *owner_env(recorded)))
        for shared, recorded in sharing:
            for name in shared.in_file:
                edits[name] = with_sharing(edits[name], shared, recorded, name)
        return self._store.write(step.file, render(step.cdi_kind, edits, step.common))

    def _edits_of(self, gpu: GpuFacts, partition: PartitionFacts, patience: Deadline) -> Edits:
        """Return the edits of a partition that was just made; its device nodes may appear a moment after it.

        Raises: HardwareError.
        """
        while True:
            try:
                return self._hardware.device_edits(gpu, partition)
            except HardwareError as error:
                if error.code != "hardware.node-missing" or patience.has_passed():
                    raise
            time.sleep(_POLL_SECONDS)


def owner_env(recorded: Wire) -> tuple[str, ...]:
    """Return the variable that records a partition's owner in case the ledger is lost; none for an administrator's.

    Each partition has its own variable name, because a container with several partitions would otherwise see only the
    last.
    """
    name = f"{OWNER_ENV}_{recorded['key'].upper().replace('-', '_')}"
    return (f"{name}={recorded['uuid']}/{recorded['bootId']}",) if recorded.get("owner") == US else ()


def is_only_file(recorded: Sequence[Wire]) -> bool:
    """Return whether recorded steps wrote a CDI file and did nothing else to the node."""
    return all(step.get("kind") == CdiFileStep.kind for step in recorded)


def ends_with_power(recorded: Sequence[Wire]) -> bool:
    """Return whether a power failure takes all away that recorded steps made: files in memory, and partitions.

    Source: NVIDIA MIG user guide, "Persistence": instances have to be made again after a reset or reboot.
    """
    return all(step.get("kind") in (CdiFileStep.kind, MigPartitionStep.kind) for step in recorded)


def carried_over(planned: Iterable[Wire], recorded: Iterable[Wire]) -> list[Wire]:
    """Return the steps of a plan, as recorded where they are, after recorded ones that the plan no longer has."""
    known = {_key(step): step for step in recorded}
    steps = [known.pop(_key(step), step) for step in planned]
    return [*known.values(), *steps]


def _sharing(steps: Iterable[Step], recorded: Sequence[Wire]) -> tuple[tuple[SharingStep, Wire], ...]:
    """Return the steps that share devices, each with its record."""
    return tuple((s, recorded[_index_of(s, recorded)]) for s in steps if isinstance(s, SharingStep))


def _key(step: Wire) -> tuple[str, str]:
    return str(step.get("kind")), str(step.get("key") or step.get("file"))


def _index_of(step: Step, recorded: Sequence[Wire]) -> int:
    return next(i for i, r in enumerate(recorded) if _key(r) == (step.kind, step.key))
