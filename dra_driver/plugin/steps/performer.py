"""StepPerformer: how one kind of step is recorded, carried out and undone.

There is one performer for each kind, registered in `plugin.effects.steps`. The hooks are called in this order: `look`
before anything is done or recorded; then `perform` for each step of the plan; `undo` in reverse order, from records
alone. Every hook starts from the node's current state, so that each may be repeated after a crash at any line.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from dra_driver.claims.plan import Step
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.recorded_steps import RecordedStep
from dra_driver.plugin.steps.step_run import StepRun, Undoing

P = TypeVar("P", bound=Step)
R = TypeVar("R", bound=RecordedStep)


class StepPerformer(Generic[P, R]):
    """Carries out the steps of one `kind`. Any number of threads may call it."""

    kind: ClassVar[str]

    def intent(self, step: P) -> R:
        """Return what to record about a planned step about which nothing is known yet."""
        raise NotImplementedError

    def look(self, step: P, _deadline: Deadline) -> R:
        """Return the intent completed by what is found on the node; refuse what can't work. Nothing is changed.

        Raises: HardwareError, SharingError.
        """
        return self.intent(step)

    def in_force(self, step: P, _recorded: R) -> P:
        """Return a planned step as the claim was prepared with it: the configuration may have changed since."""
        return step

    def left_in_force(self, _recorded: R) -> P | None:
        """Return the step to keep carrying out for a recorded step that the plan no longer has, or None."""
        return None

    def perform(self, step: P, recorded: R, run: StepRun) -> R:
        """Carry out the step, and return what to record about it. Idempotent.

        Raises: ClaimError, HardwareError, PrepareError, SharingError.
        """
        raise NotImplementedError

    def find(self, step: P, recorded: R, run: StepRun) -> None:
        """Find what `perform` made, for the steps after this one.

        Nothing is made, except that a changed file is written again.

        Raises: HardwareError, PrepareError.
        """

    def is_shown(self, _recorded: R, _undoing: Undoing) -> bool:
        """Return whether other calls have to see in the ledger that the step is being undone, before that begins.

        If no call has to see that, the claim counts as prepared until it is undone: after a crash, the kubelet, which
        got no answer, asks again.
        """
        return True

    def undo(self, recorded: R, undoing: Undoing) -> None:
        """Undo a recorded step. Idempotent. Raises: HardwareError, PrepareError, SharingError."""
        raise NotImplementedError
