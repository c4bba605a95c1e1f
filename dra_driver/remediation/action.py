"""GpuAction: the step in which the action is carried out on a GPU that nothing uses.

In: a case. Out: the same case after its action, or with what it waits for. The action is counted on disk before it
begins, so an action that was begun before a crash is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import DriverError, HardwareError, Retry
from dra_driver.model.names import gpu_name
from dra_driver.remediation.action_wording import ACTION, noun_of, verb_of
from dra_driver.remediation.budgets import ActionRow
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.case_outcomes import CaseOutcomes
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.remediation_node import RemediationNode


class GpuAction:
    """The actions of one node."""

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        outcomes: CaseOutcomes,
        *,
        boot_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._node, self._journal, self._policy, self._outcomes = node, journal, policy, outcomes
        self._clock, self._boot_id = clock, boot_id

    def act(self, case: RemediationCase) -> RemediationCase:
        """Carry out the action. If it was begun before a crash, it is not repeated, and only its effect is checked."""
        is_reboot = case.action is RemediationAction.REBOOT
        if case.is_acting and (not is_reboot or case.boot != self._boot_id):
            acted = self._acted(case, "interrupted")
            self._node.resume()
            return acted
        gpus = case.acted_on_among(self._node.gpus())
        if not is_reboot and (why := self._node.release_library(gpus)):
            return case.waiting(why)
        if not case.is_acting:
            case = replace(case, tries=case.tries + 1, boot=self._boot_id, is_acting=True, waits_for="")
            self._journal.write(case, began=ActionRow(self._clock(), case.uuid, str(case.action)))
        try:
            self._carry_out(case, gpus)
        except DriverError as error:
            return self._outcomes.failed(case, f"{noun_of(case.action)} failed: {error.message}")
        acted = self._acted(case, "asked" if is_reboot else "done")
        self._node.resume()
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
        elif self._policy.command is not None:
            self._node.run(self._policy.command, gpus[0])
