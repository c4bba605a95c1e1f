"""Effects: carries out the steps of a plan and undoes recorded steps, each by the performer registered for its kind.

The performer of the step that every claim has, which writes its CDI file, is the last of this chapter; the others are
in the chapters beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, Generic, TypeVar

from dra_driver.base.errors import NODE_MISSING, DriverError, HardwareError, PrepareError, Retry
from dra_driver.base.machine import NODE_SECONDS, Deadline
from dra_driver.base.telemetry.logs import no_thread
from dra_driver.hardware.facts import Edits, GpuFacts, PartitionFacts, merge
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.node.cdi import CdiStore, record_text, render
from dra_driver.node.claims.metadata import DeviceMetadata
from dra_driver.node.claims.plan import CdiFileStep, MigPartitionStep, SharingStep, Step
from dra_driver.node.devices.describing import Device
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.recorded_steps import (
    RecordedFile,
    RecordedPartition,
    RecordedSharing,
    RecordedStep,
    UnknownStep,
    partition_env,
    sharing_env,
)

# Step run and undo run: what the performers share while the steps of one claim are carried out or undone.


@dataclass(frozen=True, slots=True)
class MadePartition:
    """A partition that exists, its GPU, and what is recorded about it."""

    gpu: GpuFacts
    facts: PartitionFacts
    recorded: RecordedPartition


class StepRun:
    """The run of one claim's steps: what is recorded about them, and what they have made so far.

    Several threads may carry out steps. Later steps use what earlier ones made:

    Attributes:
        partitions: the partitions, by device name.
        passed: the container edits of GPUs for virtual machines, by device name.
        shared: the steps of shared devices, with their records.
        edits: container edits that are added to those of devices, which are given by their name in the CDI file.
        is_changed: whether the record differs from the one at the start.
        is_file_changed: whether the CDI file had to be written.
    """

    def __init__(self, uid: str, recorded: Iterable[RecordedStep], ledger: Ledger, deadline: Deadline) -> None:
        self.uid, self.deadline, self._ledger = uid, deadline, ledger
        self._recording = threading.Lock()  # so that each write contains what earlier ones recorded
        self._recorded = {step.identity: step for step in recorded}
        self.partitions: dict[str, MadePartition] = {}
        self.passed: dict[str, Edits] = {}
        self.edits: list[tuple[str, Edits]] = []
        self.shared: list[tuple[SharingStep, RecordedSharing]] = []
        self.is_changed = self.is_file_changed = False

    @property
    def recorded(self) -> tuple[RecordedStep, ...]:
        """What is recorded about the steps, in order."""
        return tuple(self._recorded.values())

    def record_of(self, kind: str, key: str) -> RecordedStep:
        """Return what is recorded about a step."""
        return self._recorded[kind, key]

    def by_identity(self) -> dict[tuple[str, str], RecordedStep]:
        """Return what is recorded about the steps, by kind and key."""
        return dict(self._recorded)

    def keep(self, step: RecordedStep) -> None:
        """Keep the record of what a step found or made; the claim's commit makes it durable."""
        self._recorded[step.identity] = step
        self.is_changed = True

    def record(self, step: RecordedStep) -> None:
        """Record durably what a step is about to do. Raises: LedgerError."""
        with self._recording:
            self.keep(step)
            self._ledger.set_steps(self.uid, self.recorded)

    def patience(self) -> AbstractContextManager[None]:
        """Return a context in which this thread waits for a locked ledger until the call's deadline."""
        return self._ledger.until(self.deadline)


@dataclass(slots=True)
class UndoRun:
    """The run in which one claim's steps are undone.

    Attributes:
        failed: the identities of the steps that could not be undone this time.
        modes_off: the PCI addresses of GPUs whose MIG mode was switched off because nothing needs it any more.
        alone_on: the PCI addresses of GPUs whose MIG mode is ours and of which no other claim had a part at the start.
    """

    uid: str
    deadline: Deadline
    failed: set[tuple[str, str]] = field(default_factory=set)
    modes_off: set[str] = field(default_factory=set)
    alone_on: set[str] = field(default_factory=set)


# Step performer: records, carries out and undoes one kind of step.

P = TypeVar("P", bound=Step)
R = TypeVar("R", bound=RecordedStep)


class StepPerformer(Generic[P, R]):
    """Carries out the steps of one `kind`. Any number of threads may call it."""

    kind: ClassVar[str]

    def intent(self, step: P) -> R:
        """Return what to record about a planned step before the node has been inspected."""
        raise NotImplementedError

    def inspect(self, step: P, _deadline: Deadline) -> R:
        """Return the intent, completed with what is found on the node; refuse what can't work. Nothing is changed.

        Raises: HardwareError, SharingError.
        """
        return self.intent(step)

    def check(self, step: P, deadline: Deadline) -> None:
        """Refuse what `perform` would refuse after other steps were carried out. Nothing is changed.

        Raises: ClaimError, HardwareError, SharingError.
        """

    def in_force(self, step: P, _recorded: R) -> P:
        """Return a planned step with the settings with which the claim was prepared.

        The configuration, from which the plan comes, may have changed since then.
        """
        return step

    def left_in_force(self, _recorded: R) -> P | None:
        """Return the step that keeps a recorded effect in force although the plan no longer has it, or None."""
        return None

    def perform(self, step: P, recorded: R, run: StepRun) -> R:
        """Carry out the step, and return what to record about it. Idempotent.

        Raises: ClaimError, HardwareError, PrepareError, SharingError.
        """
        raise NotImplementedError

    def find(self, step: P, recorded: R, run: StepRun) -> None:
        """Find what `perform` made, and put it into `run` for the following steps.

        Nothing is made, except that a changed file is written again. Raises: HardwareError, PrepareError.
        """

    def needs_mark(self, _recorded: R, _undoing: UndoRun) -> bool:
        """Return whether the ledger has to record, before it begins, that the step is being undone.

        It has to if other calls depend on that. If it does not, the claim counts as prepared until it is undone; after
        a crash in between, the kubelet, which got no answer, asks again.
        """
        return True

    def undo(self, recorded: R, undoing: UndoRun) -> None:
        """Undo a recorded step. Idempotent. Raises: HardwareError, PrepareError, SharingError."""
        raise NotImplementedError


_ONE_AND_FILE = 2  # the steps of a plan that changes one thing, which is checked before it is changed


class Effects:
    """Carries out and undoes the steps of claims on this node with the `performers`, one for each kind of step."""

    def __init__(self, performers: Iterable[StepPerformer[Any, Any]]) -> None:
        self._performers = {performer.kind: performer for performer in performers}

    def inspect(self, steps: Sequence[Step], deadline: Deadline) -> tuple[RecordedStep, ...]:
        """Return what has to be recorded before anything is done.

        Raises: ClaimError, HardwareError, SharingError, for what would otherwise be refused only after another step had
        changed something.
        """
        found = tuple([self._performers[step.kind].inspect(step, deadline) for step in steps])
        if len(found) > _ONE_AND_FILE:
            for step in steps:
                self._performers[step.kind].check(step, deadline)
        return found

    def carried_over(self, steps: Iterable[Step], recorded: Iterable[RecordedStep]) -> tuple[RecordedStep, ...]:
        """Return the recorded steps that the plan no longer has, then those of the plan, as recorded if they were."""
        known = {step.identity: step for step in recorded}
        kept = [known.pop((step.kind, step.key), None) or self._performers[step.kind].intent(step) for step in steps]
        return (*known.values(), *kept)

    def restore(self, steps: Iterable[Step], run: StepRun) -> None:
        """Carry out the steps of a claim that was prepared before, as it was prepared with them. See `apply`."""
        self.apply(self._in_force(steps, run), run)

    def apply(self, steps: Sequence[Step], run: StepRun) -> None:
        """Carry out the steps in order, but partitions on several GPUs at the same time.

        `run` keeps what they find and make. Idempotent: a step whose effect is already in place changes nothing.

        Raises: ClaimError, HardwareError, PrepareError, SharingError, after every step that was begun has ended.
        """
        if sum(isinstance(step, MigPartitionStep) for step in steps) < 2:
            self._perform(steps, run)
            return
        for chains in _groups(steps):
            if len(chains) == 1:
                self._perform(chains[0], run)
                continue
            self._perform_together(chains, run)

    def refresh(self, steps: Iterable[Step], run: StepRun) -> None:
        """Rewrite the CDI file from the node's current state, and make nothing else.

        Raises: HardwareError, PrepareError.
        """
        for step in self._in_force(steps, run):
            self._performers[step.kind].find(step, run.record_of(step.kind, step.key), run)

    def needs_mark(self, steps: Iterable[RecordedStep], undoing: UndoRun) -> bool:
        """Return whether the ledger has to record, before it begins, that the steps are being undone."""
        for step in steps:
            performer = self._performers.get(step.kind)
            if performer is None or performer.needs_mark(step, undoing):
                return True
        return False

    def undo(self, steps: Iterable[RecordedStep], undoing: UndoRun) -> Collection[str]:
        """Undo recorded steps, last first. Idempotent.

        Return the GPUs, by PCI address, whose MIG mode was switched off because nothing needs it any more.

        Raises: HardwareError, PrepareError, after every other step was undone; "prepare.step-unknown" for a step that a
        newer agent recorded.
        """
        unknown: list[str] = []
        fault: DriverError | None = None
        for step in reversed(tuple(steps)):
            performer = self._performers.get(step.kind)
            if performer is None:
                unknown.append(step.name if isinstance(step, UnknownStep) else step.kind)
                continue
            try:
                performer.undo(step, undoing)
            except DriverError as error:
                undoing.failed.add(step.identity)
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
        return undoing.modes_off

    def _perform(self, steps: Iterable[Step], run: StepRun) -> None:
        for step in steps:
            recorded = run.record_of(step.kind, step.key)
            made = self._performers[step.kind].perform(step, recorded, run)
            if made is not recorded:
                run.keep(made)

    def _perform_together(self, chains: Sequence[Iterable[Step]], run: StepRun) -> None:
        """Carry out chains of steps at the same time. Raises: NodeError("node.thread") and what steps raise."""
        try:
            with ThreadPoolExecutor(len(chains), thread_name_prefix="partitions") as pool:
                begun = [pool.submit(self._perform_apart, chain, run) for chain in chains]
        except RuntimeError as error:  # what was begun has ended
            raise no_thread("partitions", error) from error
        for each in begun:
            each.result()

    def _perform_apart(self, steps: Iterable[Step], run: StepRun) -> None:
        """Carry out steps one after the other, in a thread other than the call's own."""
        with run.patience():
            self._perform(steps, run)

    def _in_force(self, steps: Iterable[Step], run: StepRun) -> list[Step]:
        """Return the plan's steps as the claim was prepared with them, and those only of its earlier plan.

        The CDI file comes last, because it describes what the other steps made.
        """
        known = run.by_identity()
        *kept, last = [self._performers[s.kind].in_force(s, known.pop((s.kind, s.key))) for s in steps]
        left = ((self._performers.get(recorded.kind), recorded) for recorded in known.values())
        more = [performer.left_in_force(recorded) for performer, recorded in left if performer is not None]
        return [*kept, *(step for step in more if step is not None), last]


def _groups(steps: Iterable[Step]) -> Iterator[list[list[Step]]]:
    """Yield groups of chains of steps; the chains of a group, one for each GPU, can be carried out at the same time."""
    for is_of_partitions, group in groupby(steps, lambda step: isinstance(step, MigPartitionStep)):
        if not is_of_partitions:
            yield [list(group)]
            continue
        by_gpu: dict[str, list[Step]] = {}
        for step in group:
            if isinstance(step, MigPartitionStep):
                by_gpu.setdefault(step.gpu.pci_address, []).append(step)
        yield list(by_gpu.values())


# CDI files: the last step of each claim writes its file, after everything that the file describes was made.

_POLL_SECONDS = 0.05

# By name in the file: the edits of a device that another step made, and its record if it is a partition.
_Made = dict[str, tuple[Edits, RecordedPartition | None]]


class CdiFiles(StepPerformer[CdiFileStep, RecordedFile]):
    """The CDI files of one node's claims."""

    kind = CdiFileStep.kind

    def __init__(self, store: CdiStore, hardware: Hardware, metadata: DeviceMetadata) -> None:
        self._store, self._hardware, self._metadata = store, hardware, metadata

    def intent(self, step: CdiFileStep) -> RecordedFile:
        """Return the record of a file: its name."""
        return RecordedFile(step.file)

    def inspect(self, step: CdiFileStep, _deadline: Deadline) -> RecordedFile:
        """Return the intent, if the standing partitions that the file describes still exist.

        The claim was planned before its devices' locks were taken, and they may have been destroyed between.
        Raises: HardwareError("hardware.partition-missing").
        """
        for device in step.standing:
            self._require_standing(device)
        return self.intent(step)

    def perform(self, step: CdiFileStep, recorded: RecordedFile, run: StepRun) -> RecordedFile:
        """Write the file and the metadata files that it mounts, unless they already have this content.

        Raises: HardwareError, PrepareError.
        """
        self._write(step, run, run.deadline.sooner(NODE_SECONDS))
        return recorded

    def find(self, step: CdiFileStep, _recorded: RecordedFile, run: StepRun) -> None:
        """Write the file again if device nodes or libraries have changed. Raises: HardwareError, PrepareError."""
        self._write(step, run, Deadline.after(0))

    def needs_mark(self, _recorded: RecordedFile, _undoing: UndoRun) -> bool:
        """Return False, because no other claim depends on the file."""
        return False

    def undo(self, recorded: RecordedFile, _undoing: UndoRun) -> None:
        """Remove the file. Raises: PrepareError."""
        self._store.remove(recorded.file)

    def _require_standing(self, device: Device) -> None:
        planned = device.partition
        if planned is None or not isinstance(self._hardware, Partitionable):
            return
        existing = _now_at(self._hardware, device.gpu, planned)
        if (planned.uuid, planned.gi_id, planned.ci_id) not in {(now.uuid, now.gi_id, now.ci_id) for now in existing}:
            text = f"partition {device.name} was destroyed while its claim was about to be prepared"
            raise HardwareError("partition-missing", text, retry=Retry.LATER)

    def _write(self, step: CdiFileStep, run: StepRun, patience: Deadline) -> None:
        made = {name: self._made(device, run, patience) for name, device in step.made.items()}
        document = render(step.cdi_kind, self._edits(step, run, made), step.common)
        run.is_file_changed |= self._store.write(step.file, document, _records(made, run.shared))

    def _made(self, device: str, run: StepRun, patience: Deadline) -> tuple[Edits, RecordedPartition | None]:
        """Return the edits of a device that another step made, and its record if it is a partition.

        Raises: HardwareError.
        """
        if device in run.passed:
            return run.passed[device], None
        partition = run.partitions[device]
        return self._edits_of(device, partition, patience), partition.recorded

    def _edits(self, step: CdiFileStep, run: StepRun, made: _Made) -> dict[str, Edits]:
        """Return the edits of the claim's devices, by their name in the file, with what the other steps made.

        Raises: PrepareError.
        """
        edits = {**step.devices, **{name: own for name, (own, _) in made.items()}}
        for name, more in run.edits:
            edits[name] = merge((edits[name], more))
        if step.metadata:
            uuids = {device: partition.facts.uuid for device, partition in run.partitions.items()}
            for name, mount in self._metadata.write(step.metadata, uuids):
                edits[name] = edits[name]._replace(mounts=(*edits[name].mounts, mount))
        return edits

    def _edits_of(self, device: str, partition: MadePartition, patience: Deadline) -> Edits:
        """Return the edits of a partition that was just made, whose device nodes may appear a moment later.

        Raises: HardwareError.
        """
        while True:
            try:
                return self._hardware.device_edits(partition.gpu, partition.facts)
            except HardwareError as error:
                if error.code != NODE_MISSING or patience.has_passed():
                    error.message = f"device {device}: {error.message}"
                    raise
            time.sleep(_POLL_SECONDS)


def _now_at(port: Partitionable, gpu: GpuFacts, planned: PartitionFacts) -> tuple[PartitionFacts, ...]:
    """Return the partitions among which a planned one is if it still exists. Raises: HardwareError."""
    for profile in gpu.mig_profiles:
        if (profile.name, profile.gi_profile_id) == (planned.profile, planned.gi_profile_id):
            found = port.placement_now(gpu, profile, planned.start).partition  # no other placement is read for this
            return (found,) if found else ()
    return port.partitions_now(gpu)  # it is a part of a GPU instance


def _records(made: _Made, shared: Iterable[tuple[SharingStep, RecordedSharing]]) -> bytes:
    """Return what is recorded beside the file, from which a lost ledger is rebuilt: partitions and sharing."""
    entries = {name: partition_env(recorded) for name, (_, recorded) in made.items() if recorded is not None}
    for step, recorded in shared:
        for name in step.in_file:
            entries[name] = (*entries.get(name, ()), *sharing_env(step, recorded.effect))
    return record_text(entries)
