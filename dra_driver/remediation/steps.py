"""RemediationSteps: the next step for one case.

In: a case. Out: the same case one stage further, back at an earlier stage, or with what it waits for. Each step may be
repeated after a crash: a stage is written to disk only when everything that belongs to it is done. The action, which
must not be done twice without being counted, is counted on disk before it begins.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.remediation.action import GpuAction
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.case_outcomes import CaseOutcomes
from dra_driver.remediation.drain import GpuDrain
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationPolicy
from dra_driver.remediation.recovery import GpuRecovery
from dra_driver.remediation.remediation_node import RemediationNode


class RemediationSteps:
    """The steps of one node's cases. `outcomes` decides how a case continues after a step that did not help.

    `begun` is called with each case whose action is counted on disk and about to begin.
    """

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        begun: Callable[[RemediationCase], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self.outcomes = CaseOutcomes(node, journal, policy, boot_id=boot_id, clock=clock)
        drain = GpuDrain(node, journal, policy, self.outcomes, clock=clock)
        action = GpuAction(node, journal, policy, self.outcomes, drain, boot_id=boot_id, clock=clock, begun=begun)
        recovery = GpuRecovery(node, policy, self.outcomes, boot_id=boot_id, clock=clock)
        self._steps = {
            Stage.DETECTED: drain.await_taint,
            Stage.TAINTED: drain.ask,
            Stage.DRAIN_ASKED: drain.await_end,
            Stage.DRAINED: action.act,
            Stage.NVML_LET_GO: action.act,
            Stage.ACTED: recovery.find,
            Stage.SAME_UUID_FOUND: recovery.validate,
            Stage.VALIDATED: recovery.give_back,
        }

    def step(self, case: RemediationCase) -> RemediationCase:
        """Take the next step and return the case, which is on disk if it has changed. Raises: DriverError."""
        after = self._steps[case.stage](case)
        if after != case:
            self._journal.write(after)
        return after
