"""Compute units: chooses the compute units of a GPU to which a claim's programs are limited. No two claims share one.

In: steps of plans. Out: units, in the ledger and for the claim's CDI file. The ledger is the only record: nothing on
the GPU is set, and a claim's units are free when its row is removed. They are chosen under the GPU's lock, which also
holds between two agents, and are recorded before any container gets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dra_driver.claims.steps.compute_units import ComputeUnitsStep
from dra_driver.hardware.port import ComputeUnitChoosing
from dra_driver.model.errors import Retry, SharingError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.recorded_steps import RecordedComputeUnits
from dra_driver.plugin.locks import NodeLocks
from dra_driver.plugin.steps.performer import StepPerformer
from dra_driver.plugin.steps.step_run import StepRun, UndoRun


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
