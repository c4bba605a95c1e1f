"""RemediationSteps: the next step for one case.

In: a case. Out: the same case one stage further, back at an earlier one, or with what it waits for. Each step may be
repeated after a crash: the stage is on disk only when everything that belongs to it is done, and what must not be done
twice without being counted (the action) is counted on disk before it begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.errors import ApiError, DriverError, HardwareError, Retry
from dra_driver.model.names import gpu_name
from dra_driver.remediation.budgets import ActionRow, spent
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.treated_node import TreatedNode
from dra_driver.remediation.treatment import treatment_of
from dra_driver.telemetry.logs import fields
from dra_driver.validation.result import ValidationVerdict

log = logging.getLogger(__name__)

FOUND_SECONDS = 300.0  # a GPU may scrub its memory after a reset
SETTLED_SECONDS, FLAPPING_SECONDS = 180.0, 900.0  # a fault that came and went ends only after ten calm minutes
PAUSE_SECONDS = 60.0  # between two tries
NAMED_MOST = 5  # claims or processes in one sentence
DRAIN, BLOCKED, GAVE_UP = "RemediationDrain", "RemediationBlocked", "RemediationEscalated"
RETURNED, ACTION = "RemediationReturned", "RemediationAction"


class RemediationSteps:
    """The steps of one node's cases."""

    def __init__(
        self,
        node: TreatedNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node, self._journal, self._policy, self._boot_id = node, journal, policy, boot_id
        self._clock, self._began_at = clock, clock()
        self._steps = {
            Stage.DETECTED: self._taint,
            Stage.TAINTED: self._ask_for_drain,
            Stage.DRAIN_ASKED: self._await_drain,
            Stage.DRAINED: self._let_go,
            Stage.NVML_LET_GO: self._act,
            Stage.ACTED: self._find,
            Stage.SAME_UUID_FOUND: self._prove,
            Stage.VALIDATED: self._return,
        }

    def step(self, case: RemediationCase) -> RemediationCase:
        """Take the next step and return the case, which is on disk if it has changed. Raises: DriverError."""
        after = self._steps[case.stage](case)
        if after != case:
            self._journal.write(after)
        return after

    # -- until nobody uses the GPU -------------------------------------------------------------------------------------

    def _taint(self, case: RemediationCase) -> RemediationCase:
        if not self._node.is_published():
            return case.waiting("the taint to be published")
        return case.at(Stage.TAINTED, self._clock())

    def _ask_for_drain(self, case: RemediationCase) -> RemediationCase:
        text = f"{gpu_name(case.gpu)}: {case.key} needs {_noun(case.action)}, which waits until no pod uses the GPU"
        self._node.tell(DRAIN, text, (case.gpu, *case.peers))
        return case.at(Stage.DRAIN_ASKED, self._clock())

    def _await_drain(self, case: RemediationCase) -> RemediationCase:
        now = self._clock()
        if why := spent(case, self._journal.actions(), self._policy, now):
            return self.escalated(case, why)
        if now < case.not_before:
            return case
        if why := self._used(case):
            return case.waiting(why)
        if case.action is not RemediationAction.REBOOT:
            case, why = self._closed(case)
            if why:
                self._node.tell(BLOCKED, f"{gpu_name(case.gpu)}: {_noun(case.action)} waits for {why}")
                return case.waiting(why)
        try:
            wait = self._node.take_slot()
        except ApiError as error:
            return case.waiting(f"the cluster's leave to act, which can't be asked for: {error.message}")
        if wait > 0:
            return case.waiting("other nodes of the cluster to finish theirs")
        return case.at(Stage.DRAINED, now)

    # -- the action ----------------------------------------------------------------------------------------------------

    def _let_go(self, case: RemediationCase) -> RemediationCase:
        if case.action is RemediationAction.REBOOT:
            return self._act(case)
        gpus = self._acted_on(case)
        if case.action is RemediationAction.RESET and self._awaits_driver(case):
            return self._await_driver(case)
        if case.action is RemediationAction.RESET and any(gpu.partitions for gpu in gpus):
            return self._await_partitions(case)
        why = self._node.let_go(gpus) or self._used(case) or self._blocked(gpus)
        if not why:
            return case.at(Stage.NVML_LET_GO, self._clock())
        self._node.resume()
        self._node.give_slot_back()
        return case.at(Stage.DRAIN_ASKED, self._clock(), waits_for=why)

    def _act(self, case: RemediationCase) -> RemediationCase:
        """Carry out the action. One that was begun before a crash is not repeated: its effect is looked at."""
        is_reboot = case.action is RemediationAction.REBOOT
        if case.is_acting and (not is_reboot or case.boot != self._boot_id):
            acted = self._acted(case, "interrupted")
            self._node.resume()
            return acted
        gpus = self._acted_on(case)
        if not is_reboot and (why := self._node.let_go(gpus)):
            return case.waiting(why)
        if not case.is_acting:
            case = replace(case, tries=case.tries + 1, boot=self._boot_id, is_acting=True, waits_for="")
            self._journal.write(case, began=ActionRow(self._clock(), case.uuid, str(case.action)))
        try:
            self._carry_out(case, gpus)
        except DriverError as error:
            return self.failed(case, f"{_noun(case.action)} failed: {error.message}")
        acted = self._acted(case, "asked" if is_reboot else "done")
        self._node.resume()
        self._node.tell(ACTION, f"{gpu_name(case.gpu)}: {_noun(case.action)} was {_verb(case.action)} for {case.key}")
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

    # -- back into use -------------------------------------------------------------------------------------------------

    def _find(self, case: RemediationCase) -> RemediationCase:
        if case.action is RemediationAction.REBOOT and case.boot == self._boot_id:
            if self._clock() - case.stage_at > self._policy.reboot_within_s:
                return self.escalated(case, "nobody rebooted the machine", keeps_request=True)
            return case.waiting("a reboot of the machine")
        self._node.withdraw_reboot()
        since = max(case.stage_at, self._began_at)
        here = self._gpu(case) if self._node.was_seen_since(since) else None
        if here is not None and not here.is_lost:
            return self._found(case, here)
        if self._clock() - since > FOUND_SECONDS:
            return self.failed(case, "the GPU was not found again")
        return case.waiting("the GPU to be found again")

    def _found(self, case: RemediationCase, here: GpuFacts) -> RemediationCase:
        if here.uuid != case.uuid:
            return self.escalated(case, f"another GPU, {here.uuid}, is at its address")
        self._node.forget_errors(case.gpu)
        return self.restored(case).at(Stage.SAME_UUID_FOUND, self._clock())

    def _prove(self, case: RemediationCase) -> RemediationCase:
        now = self._clock()
        gpu = self._gpu(case)
        standing = [one for one in self._node.faults() if one.subject.gpu == case.gpu]
        treatment = treatment_of(gpu, standing, self._policy) if gpu else None
        is_here = gpu is not None and not gpu.is_lost and self._node.was_read_since(case.gpu, case.stage_at)
        if gpu is None or not is_here or treatment is not None:
            is_flapping = any(one.is_flapping for one in standing)
            if now - max(case.stage_at, self._began_at) > (FLAPPING_SECONDS if is_flapping else SETTLED_SECONDS):
                what = treatment.fault.sentence if treatment else "its health can't be read"
                return self.failed(case, f"the GPU is not well: {what}")
            return case.waiting("the GPU's health to be read as good")
        found = self._node.prove(gpu)
        if found.verdict is ValidationVerdict.FAILED:
            why = f"validation failed: {found.reason} {found.detail}".rstrip()
            return self.failed(replace(case, is_unproven=True), why)
        return case.at(Stage.VALIDATED, now)

    def _return(self, case: RemediationCase) -> RemediationCase:
        self._node.withdraw_reboot()
        self._node.give_slot_back()
        self._node.tell(RETURNED, f"{gpu_name(case.gpu)} is well and offered again after {_noun(case.action)}")
        return case.at(Stage.RETURNED, self._clock(), waits_for=f"after {_noun(case.action)}")

    # -- ways out ------------------------------------------------------------------------------------------------------

    def failed(self, case: RemediationCase, why: str) -> RemediationCase:
        """Return the case after a try that did not help: before another one, or escalated."""
        self._node.resume()
        now = self._clock()
        again = case.at(Stage.DRAIN_ASKED, now, is_acting=False, not_before=now + PAUSE_SECONDS, waits_for=why)
        self._journal.write(again, outcome=f"failed: {why}")
        if spent(again, self._journal.actions(), self._policy, now):
            return self.escalated(again, why)
        self._node.give_slot_back()
        return again

    def escalated(self, case: RemediationCase, why: str, *, keeps_request: bool = False) -> RemediationCase:
        """Return the case as one for a person. A request of a reboot is taken back, unless it is to stay."""
        self._node.resume()
        if not keeps_request:
            self._node.withdraw_reboot()
        self._node.give_slot_back()
        self._node.tell(GAVE_UP, f"{gpu_name(case.gpu)} stays out of use, a person has to look: {why}")
        return case.at(Stage.ESCALATED, self._clock(), is_acting=False, boot=self._boot_id, waits_for=why)

    def restored(self, case: RemediationCase) -> RemediationCase:
        """Return the case with persistence mode on again where it was on."""
        known = {one.pci_address: one for one in self._node.gpus() if not one.is_lost}
        for gpu in filter(None, map(known.get, case.persistence)):
            try:
                self._node.set_persistence(gpu, enabled=True)
            except DriverError as error:  # the GPU serves without it
                keys = fields(device=gpu.pci_address, code=error.code, err=str(error))
                log.warning("persistence mode is not on again", extra=keys)
        return replace(case, persistence=())

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _gpu(self, case: RemediationCase) -> GpuFacts | None:
        return next((one for one in self._node.gpus() if one.pci_address == case.gpu), None)

    def _acted_on(self, case: RemediationCase) -> tuple[GpuFacts, ...]:
        """Return the case's GPU as last read, with its peers if they can only be reset together; none if it is gone."""
        gpu = self._gpu(case)
        if gpu is None:
            return ()
        peers = [one for one in self._node.gpus() if one.pci_address in case.peers] if gpu.is_reset_with_peers else []
        return (gpu, *peers)

    def _awaits_driver(self, case: RemediationCase) -> bool:
        gpu = self._gpu(case)
        treatment = treatment_of(gpu, self._node.faults(), self._policy) if gpu else None
        return treatment is not None and treatment.awaits_driver

    def _await_driver(self, case: RemediationCase) -> RemediationCase:
        if self._clock() - case.stage_at > SETTLED_SECONDS:
            return self.escalated(case, "its peers are drained, but the driver does not say what to do next")
        return case.waiting("the driver to say what to do, now that the GPU's peers are drained")

    def _await_partitions(self, case: RemediationCase) -> RemediationCase:
        """Wait for partitions that ended claims leave behind; an administrator's stay, and no reset removes them."""
        if self._clock() - case.stage_at > SETTLED_SECONDS:
            return self.escalated(case, "the GPU has MIG partitions that no claim made, which a reset would remove")
        return case.waiting("the GPU's MIG partitions to be removed")

    def _closed(self, case: RemediationCase) -> tuple[RemediationCase, str]:
        """Make whatever is ours close the GPU; return the case, and who else has it open."""
        gpus = self._acted_on(case)
        for gpu in gpus:
            self._node.end_sharing(gpu)
        was_on = tuple(gpu.pci_address for gpu in gpus if self._node.persistence(gpu))
        if was_on:
            case = replace(case, persistence=tuple(sorted({*case.persistence, *was_on})))
            self._journal.write(case)  # before the change, so that it is undone after a crash too
        for gpu in gpus:
            if gpu.pci_address in was_on:
                self._node.set_persistence(gpu, enabled=False)
        return case, self._blocked(gpus)

    def _blocked(self, gpus: tuple[GpuFacts, ...]) -> str:
        clients = [one for gpu in gpus for one in self._node.clients(gpu)]
        return f"{_listed('process', clients)} to close the GPU" if clients else ""

    def _used(self, case: RemediationCase) -> str:
        users = self._node.users((case.gpu, *case.peers))
        return f"{_listed('claim', users)} to end" if users else ""


def _listed(kind: str, names: tuple[str, ...] | list[str]) -> str:
    """Return the first of some claims or processes in words."""
    more = f" and {len(names) - NAMED_MOST} more" if len(names) > NAMED_MOST else ""
    plural = {"claim": "claims", "process": "processes"}[kind]
    return f"{kind if len(names) == 1 else plural} {', '.join(names[:NAMED_MOST])}{more}"


def _noun(action: RemediationAction) -> str:
    return {"reset": "a reset", "reboot": "a reboot", "command": "the site's command"}.get(str(action), "nothing")


def _verb(action: RemediationAction) -> str:
    return {"reset": "done", "reboot": "asked for", "command": "run"}.get(str(action), "done")
