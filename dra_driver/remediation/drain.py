"""GpuDrain: the steps until nothing uses a GPU, neither claims nor processes.

In: a case. Out: the same case one stage further, or with what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import ApiError
from dra_driver.model.names import gpu_name
from dra_driver.remediation.action_choice import choose_action
from dra_driver.remediation.action_wording import BLOCKED, DRAIN, listed, noun_of
from dra_driver.remediation.budgets import spent
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.case_outcomes import CaseOutcomes
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.remediation_node import RemediationNode

SETTLED_SECONDS = 180.0


class GpuDrain:
    """The drain of one node's GPUs."""

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        outcomes: CaseOutcomes,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._node, self._journal, self._policy, self._outcomes = node, journal, policy, outcomes
        self._clock = clock

    def await_taint(self, case: RemediationCase) -> RemediationCase:
        """Wait until no new claim gets the GPU."""
        if not self._node.is_published():
            return case.waiting("the taint to be published")
        return case.at(Stage.TAINTED, self._clock())

    def ask(self, case: RemediationCase) -> RemediationCase:
        """Announce the drain of the GPU in Events about the node and about the pods that use the GPU."""
        text = f"{gpu_name(case.gpu)}: {case.key} needs {noun_of(case.action)}, which waits until no pod uses the GPU"
        self._node.send_event(DRAIN, text, (case.gpu, *case.peers))
        return case.at(Stage.DRAIN_ASKED, self._clock())

    def await_end(self, case: RemediationCase) -> RemediationCase:
        """Wait until nothing uses the GPU, and take one of the slots of the cluster. Raises: DriverError."""
        now = self._clock()
        if why := spent(case, self._journal.actions(), self._policy, now):
            return self._outcomes.escalated(case, why)
        if now < case.not_before:
            return case
        if why := self._used(case):
            return case.waiting(why)
        if case.action is not RemediationAction.REBOOT:
            case, why = self._closed(case)
            if why:
                return self._reported(case, why)
        try:
            why = self.slot_hindrance()
        except ApiError as error:
            return self._reported(case, f"a slot of the cluster's budget, which can't be read: {error}")
        return case.waiting(why) if why else case.at(Stage.DRAINED, now)

    def awaited(self, case: RemediationCase) -> RemediationCase | None:
        """Return a drained case with what a reset still waits for; None if the action may begin."""
        if case.action is not RemediationAction.RESET:
            return None
        if self._awaits_driver(case):
            return self._await_driver(case)
        if any(gpu.partitions for gpu in case.acted_on_among(self._node.gpus())):
            return self._await_partitions(case)
        return None

    def slot_hindrance(self) -> str:
        """Take one of the slots of the cluster, or keep the one that was taken; return why there is none, or "".

        Raises: ApiError.
        """
        is_free = self._node.acquire_slot() <= 0
        return "" if is_free else "other nodes of the cluster to finish their remediations"

    def use(self, case: RemediationCase, gpus: tuple[GpuFacts, ...]) -> str:
        """Return which claims or processes use a case's GPU or its peers, or "". Raises: DriverError."""
        return self._used(case) or self._blocked(gpus)

    def _awaits_driver(self, case: RemediationCase) -> bool:
        gpu = case.gpu_among(self._node.gpus())
        choice = choose_action(gpu, self._node.faults(), self._policy) if gpu else None
        return choice is not None and choice.awaits_driver

    def _await_driver(self, case: RemediationCase) -> RemediationCase:
        if self._clock() - case.stage_at > SETTLED_SECONDS:
            return self._outcomes.escalated(case, "its peers are drained, but the driver reports no further action")
        return case.waiting("the driver to report the next action, now that the GPU's peers are drained")

    def _await_partitions(self, case: RemediationCase) -> RemediationCase:
        """Wait until the partitions of ended claims are removed. Those of an administrator forbid a reset."""
        if self._clock() - case.stage_at > SETTLED_SECONDS:
            return self._outcomes.escalated(
                case, "the GPU has MIG partitions that no claim made, which a reset would remove"
            )
        return case.waiting("the GPU's MIG partitions to be removed")

    def _closed(self, case: RemediationCase) -> tuple[RemediationCase, str]:
        """Make our own processes close the GPU; return the case, and a text about other processes that have it open."""
        gpus = case.acted_on_among(self._node.gpus())
        for gpu in gpus:
            self._node.end_sharing(gpu)
        was_on = tuple(gpu.pci_address for gpu in gpus if self._node.persistence(gpu))
        if was_on:
            case = replace(case, persistence=tuple(sorted({*case.persistence, *was_on})))
            self._journal.write(case)  # written before the change, so that it is also undone after a crash
        for gpu in gpus:
            if gpu.pci_address in was_on:
                self._node.set_persistence(gpu, enabled=False)
        return case, self._blocked(gpus)

    def _reported(self, case: RemediationCase, why: str) -> RemediationCase:
        """Report in an Event what the case waits for, because somebody has to change it; return the waiting case."""
        self._node.send_event(BLOCKED, f"{gpu_name(case.gpu)}: {noun_of(case.action)} waits for {why}")
        return case.waiting(why)

    def _blocked(self, gpus: tuple[GpuFacts, ...]) -> str:
        clients = [one for gpu in gpus for one in self._node.clients(gpu)]
        return f"{listed('process', clients)} to close the GPU" if clients else ""

    def _used(self, case: RemediationCase) -> str:
        users = self._node.users((case.gpu, *case.peers))
        return f"{listed('claim', users)} to end" if users else ""
