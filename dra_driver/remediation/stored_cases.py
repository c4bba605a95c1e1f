"""StoredCases: the cases of a node as a new process finds them on disk.

In: the journal. Out: the cases, or None while they can't be read. What an earlier process had only in memory is not
restored: a GPU that was about to be acted on is drained again. If a damaged journal has lost the cases, every GPU gets
one in which it is examined.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_driver.hardware.facts import GpuFacts
from dra_driver.health.fault import Fault, FaultKey, Subject
from dra_driver.model.errors import LedgerError
from dra_driver.remediation.action_choice import ActionChoice
from dra_driver.remediation.case import EXAMINED, RemediationCase, Stage
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction
from dra_driver.remediation.remediation_node import RemediationNode
from dra_driver.store.state import is_damaged
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


class StoredCases:
    """The cases of one node on disk."""

    def __init__(
        self, node: RemediationNode, journal: RemediationJournal, *, boot_id: str, clock: Callable[[], float]
    ) -> None:
        self._node, self._journal, self._boot_id, self._clock = node, journal, boot_id, clock
        self._problem = ""
        self.began_at = clock()  # when this process began to read them

    def begin(self) -> None:
        """Begin anew: this instance got the node's role."""
        self._problem, self.began_at = "", self._clock()

    def read(self) -> dict[str, RemediationCase] | None:
        """Return the cases by PCI address, or None if they can't be read now."""
        try:
            if self._are_lost() and not self._examine_all():
                return None
            return {case.gpu: self._after_restart(case) for case in self._journal.cases()}
        except LedgerError as error:
            if error.code != self._problem:
                self._problem = error.code
                log.error("remediation journal can't be read", extra=fields(code=error.code, err=str(error)))  # noqa: TRY400
            return None

    def _are_lost(self) -> bool:
        try:
            return self._journal.may_have_lost_cases()
        except LedgerError as error:
            if not is_damaged(error):
                raise
        self._journal.set_aside()
        return self._journal.may_have_lost_cases()

    def _examine_all(self) -> bool:
        """Open a case for every GPU, as if each had just been acted on: its health is read, and it is tested.

        Return False before the GPUs are known.
        """
        gpus, now = self._node.gpus(), self._clock()
        if not gpus or not self._node.was_seen_since(self.began_at):
            return False
        cases = (opened(gpu, None, boot=self._boot_id, now=now) for gpu in gpus)
        self._journal.begin(case.at(Stage.SAME_UUID_FOUND, now) for case in cases)
        return True

    def _after_restart(self, case: RemediationCase) -> RemediationCase:
        """Return a case as a new process continues it: what keeps a GPU unused until its action ends with a process."""
        if case.stage not in (Stage.DRAINED, Stage.NVML_LET_GO) or case.is_acting:
            return case
        return case.at(Stage.DRAIN_ASKED, self._clock())


def opened(gpu: GpuFacts, choice: ActionChoice | None, *, boot: str, now: float) -> RemediationCase:
    """Return the new case of a GPU; without a choice, one in which it is only examined."""
    fault = choice.fault if choice else Fault(FaultKey.REMEDIATION, Subject(gpu.pci_address), EXAMINED, now, now)
    return RemediationCase(
        gpu.pci_address,
        gpu.uuid,
        fault.key,
        fault.value,
        fault.since,
        now,
        Stage.DETECTED,
        now,
        choice.action if choice else RemediationAction.NONE,
        boot=boot,
        peers=choice.peers if choice else (),
    )
