"""Effects: carries out the steps of a plan and undoes recorded steps, each by the performer registered for its kind."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, Generic, TypeVar

from dra_driver.base.edits import Edits
from dra_driver.base.errors import DriverError, PrepareError, Retry, SharingError
from dra_driver.base.telemetry.logs import no_thread
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import ComputeUnitChoosing
from dra_driver.node.claims.claim_on_node import Deadline
from dra_driver.node.claims.plan import ComputeUnitsStep, MigPartitionStep, Step
from dra_driver.node.claims.sharing_steps import SharingStep
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks
from dra_driver.node.ledger.recorded_steps import (
    RecordedComputeUnits,
    RecordedPartition,
    RecordedSharing,
    RecordedStep,
    UnknownStep,
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
        variables: names of devices in the CDI file, with container edits that are added to theirs.
        is_changed: whether the record differs from the one at the start.
        is_file_changed: whether the CDI file had to be written.
    """

    __slots__ = (
        "_ledger",
        "_recorded",
        "_recording",
        "deadline",
        "is_changed",
        "is_file_changed",
        "partitions",
        "passed",
        "shared",
        "uid",
        "variables",
    )

    def __init__(self, uid: str, recorded: Iterable[RecordedStep], ledger: Ledger, deadline: Deadline) -> None:
        self.uid, self.deadline, self._ledger = uid, deadline, ledger
        self._recording = threading.Lock()  # so that each write contains what earlier ones recorded
        self._recorded = {step.identity: step for step in recorded}
        self.partitions: dict[str, MadePartition] = {}
        self.passed: dict[str, Edits] = {}
        self.variables: list[tuple[tuple[str, ...], Edits]] = []
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
        """Carry out steps one after the other."""
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


# Compute units: chooses the compute units of a GPU to which a claim's programs are limited.


class ComputeUnits(StepPerformer[ComputeUnitsStep, RecordedComputeUnits]):
    """The compute units of one node's GPUs."""

    kind = ComputeUnitsStep.kind

    def __init__(self, hardware: object, ledger: Ledger, locks: NodeLocks) -> None:
        self._hardware, self._ledger, self._locks = hardware, ledger, locks

    def intent(self, step: ComputeUnitsStep) -> RecordedComputeUnits:
        """Return the record of a step whose units have not been chosen yet."""
        return RecordedComputeUnits(step.device)

    def inspect(self, step: ComputeUnitsStep, _deadline: Deadline) -> RecordedComputeUnits:
        """Return the intent; refuse a GPU that can't do this. Raises: SharingError("compute-units-unsupported")."""
        self._chooser(step)
        return self.intent(step)

    def perform(self, step: ComputeUnitsStep, recorded: RecordedComputeUnits, run: StepRun) -> RecordedComputeUnits:
        """Choose the units unless they were chosen before. Idempotent.

        Raises: SharingError("sharing.compute-units-taken", LATER), LedgerError, PrepareError.
        """
        if not recorded.units:
            with self._locks.hold([f"compute-units/{step.device.name}"], run.deadline):
                recorded = replace(recorded, units=tuple(self._choose(run.uid, step)))
                run.record(recorded)
        self.find(step, recorded, run)
        return recorded

    def find(self, step: ComputeUnitsStep, recorded: RecordedComputeUnits, run: StepRun) -> None:
        """Pass the units on to the step that writes the CDI file."""
        if recorded.units:
            run.variables.append((step.in_file, self._chooser(step).compute_unit_edits(recorded.units)))

    def undo(self, recorded: RecordedComputeUnits, _undoing: UndoRun) -> None:
        """Do nothing: the units are free when the claim's row is removed."""

    def _choose(self, uid: str, step: ComputeUnitsStep) -> Sequence[int]:
        """Return the lowest units that no other claim has. The caller holds the GPU's lock. Raises: SharingError."""
        others = [one for one in self._ledger.with_step_on(RecordedComputeUnits, step.device.name) if one.uid != uid]
        taken = {
            unit
            for record in others
            for one in record.steps_of(RecordedComputeUnits)
            if one.key == step.key
            for unit in one.units
        }
        free = list(_free(step, taken))
        if len(free) < step.count:
            names = ", ".join(record.full_name for record in others)
            raise SharingError(
                "compute-units-taken",
                f"{step.device} has {step.total} compute units, of which {len(free)} are free beside claims {names}; "
                f"this claim asks for {step.count}",
                hint="ask for fewer, or delete this pod and its claim so that another GPU is chosen",
                retry=Retry.LATER,
            )
        return free[: step.count]

    def _chooser(self, step: ComputeUnitsStep) -> ComputeUnitChoosing:
        if not isinstance(self._hardware, ComputeUnitChoosing):
            raise SharingError(
                "compute-units-unsupported",
                f"compute units of {step.device} can't be chosen: its runtime has no such setting",
                hint="leave computeUnits out of the config",
            )
        return self._hardware


def _free(step: ComputeUnitsStep, taken: set[int]) -> Iterable[int]:
    """Yield the units that are free; only complete pairs if the GPU uses them in pairs."""
    size = 2 if step.in_pairs else 1
    for first in range(0, step.total - size + 1, size):
        group = range(first, first + size)
        if taken.isdisjoint(group):
            yield from group
