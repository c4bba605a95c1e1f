"""GpuDrain: the steps until nothing uses a GPU, neither claims nor processes.

In: a case. Out: the same case one stage further, or with what it waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from dra_driver.base.errors import ApiError, DriverError, HardwareError, LedgerError, Retry
from dra_driver.base.names import gpu_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.health.cases import (
    EXAMINED,
    ActionRow,
    RemediationAction,
    RemediationCase,
    RemediationJournal,
    RemediationNode,
    RemediationPolicy,
    Stage,
    spent,
)
from dra_driver.node.health.faults import Fault, FaultKey, Subject
from dra_driver.node.health.recovery import (
    ACTION,
    BLOCKED,
    DRAIN,
    ActionChoice,
    CaseOutcomes,
    choose_action,
    listed,
    noun_of,
    verb_of,
)
from dra_driver.node.ledger.state import is_damaged

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


# StoredCases: the cases of a node as a new process finds them on disk.

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


# GpuAction: the step in which the action is carried out on a GPU that nothing uses.


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
