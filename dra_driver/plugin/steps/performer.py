"""Step performer: records, carries out and undoes one kind of step.

There is one performer for each kind, registered in `plugin.effects.effects`. Its methods are called in this order:
`inspect`, and `check` if a claim changes several things, before anything is recorded or done; then `perform` for each
step of the plan; finally `undo`, in reverse order and from records alone. Each of them starts from the node's current
state, so it may be repeated after a crash at any line.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from dra_driver.claims.plan import Step
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.recorded_steps import RecordedStep
from dra_driver.plugin.steps.step_run import StepRun, UndoRun

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
