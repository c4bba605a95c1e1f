"""Effects: carries out the steps of a plan and undoes recorded steps, each by the performer registered for its kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

from dra_driver.claims.plan import Step
from dra_driver.claims.steps.mig import MigPartitionStep
from dra_driver.model.errors import DriverError, PrepareError, Retry
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.recorded_steps import RecordedStep, UnknownStep
from dra_driver.plugin.steps.performer import StepPerformer
from dra_driver.plugin.steps.step_run import StepRun, UndoRun
from dra_driver.telemetry.thread_start import no_thread

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
