"""CaseOutcomes: what follows if a step did not help: another attempt, or escalation to a person.

In: a case, and the reason. Out: the case before its next attempt, or escalated; its slot is released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from dra_driver.model.errors import DriverError
from dra_driver.model.names import gpu_name
from dra_driver.remediation.action_wording import GAVE_UP
from dra_driver.remediation.budgets import spent
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationPolicy
from dra_driver.remediation.remediation_node import RemediationNode
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0  # seconds between two attempts


class CaseOutcomes:
    """How the cases of one node continue or end after a step that did not help."""

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._node, self._journal, self._policy = node, journal, policy
        self._boot_id, self._clock = boot_id, clock

    def failed(self, case: RemediationCase, why: str) -> RemediationCase:
        """Return the case after an attempt that did not help: before another one, or escalated."""
        now = self._clock()
        again = case.at(Stage.DRAIN_ASKED, now, is_acting=False, not_before=now + PAUSE_SECONDS, waits_for=why)
        self._journal.write(again, outcome=f"failed: {why}")
        if spent(again, self._journal.actions(), self._policy, now):
            return self.escalated(again, why)
        self._node.release_slot()
        return again

    def escalated(self, case: RemediationCase, why: str, *, keeps_request: bool = False) -> RemediationCase:
        """Return the case as escalated to a person. A request for a reboot is withdrawn unless `keeps_request`."""
        if not keeps_request:
            self._node.withdraw_reboot()
        self._node.release_slot()
        self._node.send_event(GAVE_UP, f"{gpu_name(case.gpu)} stays out of use until a person has examined it: {why}")
        return case.at(Stage.ESCALATED, self._clock(), is_acting=False, boot=self._boot_id, waits_for=why)

    def restored(self, case: RemediationCase) -> RemediationCase:
        """Switch persistence mode on again for the GPUs that had it, and return the case."""
        known = {one.pci_address: one for one in self._node.gpus() if not one.is_lost}
        for gpu in filter(None, map(known.get, case.persistence)):
            try:
                self._node.set_persistence(gpu, enabled=True)
            except DriverError as error:  # only logged: the GPU works without persistence mode
                keys = fields(device=gpu.pci_address, code=error.code, err=str(error))
                log.warning("persistence mode can't be switched on again", extra=keys)
        return replace(case, persistence=())
