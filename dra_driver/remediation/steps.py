"""RemediationSteps: the next step for one case.

In: a case. Out: the same case one stage further, back at an earlier stage, or with what it waits for. Each step may be
repeated after a crash: a stage is written to disk only when everything that belongs to it is done. The action, which
must not be done twice without being counted, is counted on disk before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dra_driver.remediation.action import GpuAction
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.case_outcomes import CaseOutcomes
from dra_driver.remediation.drain import GpuDrain
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.recovery import GpuRecovery
from dra_driver.remediation.remediation_node import RemediationNode


class RemediationSteps:
    """The steps of one node's cases. `outcomes` decides how a case continues after a step that did not help."""

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self.outcomes = CaseOutcomes(node, journal, policy, boot_id=boot_id, clock=clock)
        self._drain = GpuDrain(node, journal, policy, self.outcomes, clock=clock)
        self._action = GpuAction(node, journal, policy, self.outcomes, boot_id=boot_id, clock=clock)
        recovery = GpuRecovery(node, policy, self.outcomes, boot_id=boot_id, clock=clock)
        self._steps = {
            Stage.DETECTED: self._drain.await_taint,
            Stage.TAINTED: self._drain.ask,
            Stage.DRAIN_ASKED: self._drain.await_end,
            Stage.DRAINED: self._release_library,
            Stage.NVML_LET_GO: self._action.act,
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

    def _release_library(self, case: RemediationCase) -> RemediationCase:
        """Make the agent release the library; if the action is a reboot, the library stays in use."""
        return self._action.act(case) if case.action is RemediationAction.REBOOT else self._drain.release_library(case)
