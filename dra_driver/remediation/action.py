"""GpuAction: the step in which the action is carried out on a GPU that nothing uses.

In: a drained case. Out: the same case after its action, back in the drain, or with what it waits for. That nothing uses
the GPU is checked while its devices are locked and the library is released; both end with the step, however it ends.
The action is counted on disk before it begins, so an action that was begun before a crash is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import DriverError, HardwareError, Retry
from dra_driver.model.names import gpu_name
from dra_driver.remediation.action_wording import ACTION, noun_of, verb_of
from dra_driver.remediation.budgets import ActionRow
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.case_outcomes import CaseOutcomes
from dra_driver.remediation.drain import GpuDrain
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.remediation_node import RemediationNode


class GpuAction:
    """The actions of one node. `begun` is called with each case whose action is counted on disk and about to begin."""

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        outcomes: CaseOutcomes,
        drain: GpuDrain,
        *,
        boot_id: str,
        clock: Callable[[], float],
        begun: Callable[[RemediationCase], None],
    ) -> None:
        self._node, self._journal, self._policy, self._outcomes = node, journal, policy, outcomes
        self._drain, self._clock, self._boot_id, self._begun = drain, clock, boot_id, begun

    def act(self, case: RemediationCase) -> RemediationCase:
        """Carry out the action. If it was begun before a crash, it is not repeated, and only its effect is checked."""
        is_reboot = case.action is RemediationAction.REBOOT
        if case.is_acting and (not is_reboot or case.boot != self._boot_id):
            return self._acted(case, "interrupted")
        if is_reboot:
            return self._carried_out(self._begin(case, Stage.DRAINED), ())
        if (waiting := self._drain.awaited(case)) is not None:
            return waiting
        gpus = case.acted_on_among(self._node.gpus())
        with ExitStack() as slot, ExitStack() as closed:
            slot.callback(self._node.release_slot)
            why = self._drain.slot_hindrance() or closed.enter_context(self._node.closed((case.gpu, *case.peers)))
            why = why or self._drain.use(case, gpus)
            if not why:
                case = self._begin(case, Stage.NVML_LET_GO)
                slot.pop_all()  # from now on it is kept until the GPU is back
                return self._carried_out(case, gpus)
        return case.at(Stage.DRAIN_ASKED, self._clock(), waits_for=why)

    def _begin(self, case: RemediationCase, stage: Stage) -> RemediationCase:
        """Count the action on disk, unless that was done before."""
        if case.is_acting:
            return case
        now = self._clock()
        case = case.at(stage, now, tries=case.tries + 1, boot=self._boot_id, is_acting=True)
        self._journal.write(case, began=ActionRow(now, case.uuid, str(case.action)))
        self._begun(case)
        return case

    def _carried_out(self, case: RemediationCase, gpus: tuple[GpuFacts, ...]) -> RemediationCase:
        try:
            self._carry_out(case, gpus)
        except DriverError as error:
            return self._outcomes.failed(case, f"{noun_of(case.action)} failed: {error.message}")
        acted = self._acted(case, "asked" if case.action is RemediationAction.REBOOT else "done")
        what = f"{noun_of(case.action)} was {verb_of(case.action)}"
        self._node.send_event(ACTION, f"{gpu_name(case.gpu)}: {what} for {case.key}")
        return acted

    def _acted(self, case: RemediationCase, outcome: str) -> RemediationCase:
        acted = case.at(Stage.ACTED, self._clock(), is_acting=False)
        self._journal.write(acted, outcome=outcome)
        return acted

    def _carry_out(self, case: RemediationCase, gpus: tuple[GpuFacts, ...]) -> None:
        if case.action is RemediationAction.REBOOT:
            self._node.ask_reboot(f"{gpu_name(case.gpu)}: {case.key} {case.value}".rstrip())
        elif not gpus:
            raise HardwareError("gpu-lost", f"{gpu_name(case.gpu)} is gone", retry=Retry.LATER)
        elif case.action is RemediationAction.RESET:
            self._node.reset(gpus, self._policy.reset_timeout_s)
        elif case.action is RemediationAction.COMMAND and self._policy.command is not None:
            self._node.run(self._policy.command, gpus[0])
