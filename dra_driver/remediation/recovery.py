"""GpuRecovery: the steps after an action: the same GPU is found again, tested, and offered again.

In: a case. Out: the same case one stage further, before another attempt, or with what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.model.names import gpu_name
from dra_driver.remediation.action_choice import choose_action
from dra_driver.remediation.action_wording import RETURNED, noun_of
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.case_outcomes import CaseOutcomes
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy
from dra_driver.remediation.remediation_node import RemediationNode
from dra_driver.validation.result import ValidationVerdict

FOUND_SECONDS = 300.0  # a GPU may scrub its memory after a reset
SETTLED_SECONDS, FLAPPING_SECONDS = 180.0, 900.0  # a fault that comes and goes ends only after ten good minutes


class GpuRecovery:
    """The recovery of one node's GPUs."""

    def __init__(
        self,
        node: RemediationNode,
        policy: RemediationPolicy,
        outcomes: CaseOutcomes,
        *,
        boot_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._node, self._policy, self._outcomes = node, policy, outcomes
        self._boot_id, self._clock, self._began_at = boot_id, clock, clock()

    def find(self, case: RemediationCase) -> RemediationCase:
        """Wait until the same GPU is found again, after the reboot if one was requested."""
        if case.action is RemediationAction.REBOOT and case.boot == self._boot_id:
            if self._clock() - case.stage_at > self._policy.reboot_within_s:
                return self._outcomes.escalated(case, "the machine was not rebooted in time", keeps_request=True)
            return case.waiting("a reboot of the machine")
        self._node.withdraw_reboot()
        since = max(case.stage_at, self._began_at)
        here = case.gpu_among(self._node.gpus()) if self._node.was_seen_since(since) else None
        if here is not None and not here.is_lost:
            return self._found(case, here)
        if self._clock() - since > FOUND_SECONDS:
            return self._outcomes.failed(case, "the GPU was not found again")
        return case.waiting("the GPU to be found again")

    def _found(self, case: RemediationCase, here: GpuFacts) -> RemediationCase:
        if here.uuid != case.uuid:
            return self._outcomes.escalated(case, f"another GPU, {here.uuid}, is at its address")
        self._node.forget_errors(case.gpu)
        return self._outcomes.restored(case).at(Stage.SAME_UUID_FOUND, self._clock())

    def validate(self, case: RemediationCase) -> RemediationCase:
        """Wait until the GPU's readings are good, and then test it."""
        now = self._clock()
        gpu = case.gpu_among(self._node.gpus())
        is_read = self._node.was_read_since(case.gpu, case.stage_at)
        faults = [one for one in self._node.faults() if one.subject.gpu == case.gpu]  # asked last
        choice = choose_action(gpu, faults, self._policy) if gpu else None
        is_here = gpu is not None and not gpu.is_lost and is_read
        is_examined = case.action is RemediationAction.NONE  # nothing was done to it, so no attempt can have failed
        if is_examined and choice is not None:
            return replace(case, action=choice.action).at(Stage.DETECTED, now)
        if is_examined and gpu is not None and now - case.stage_at > SETTLED_SECONDS:
            is_here = True  # what can't be read of its health does not keep it out for good
        if gpu is None or not is_here or choice is not None:
            is_flapping = any(one.is_flapping for one in faults)
            if now - max(case.stage_at, self._began_at) > (FLAPPING_SECONDS if is_flapping else SETTLED_SECONDS):
                what = choice.fault.sentence if choice else "its health can't be read"
                why = f"the GPU is not healthy: {what}"
                return self._outcomes.escalated(case, why) if is_examined else self._outcomes.failed(case, why)
            return case.waiting("the GPU's health to be read as good")
        found = self._node.validate(gpu)
        if found.verdict is ValidationVerdict.FAILED:
            why = f"validation failed: {found.reason} {found.detail}".rstrip()
            if is_examined:
                return self._outcomes.escalated(case, why)
            return self._outcomes.failed(replace(case, is_unproven=True), why)
        return case.at(Stage.VALIDATED, now)

    def give_back(self, case: RemediationCase) -> RemediationCase:
        """Offer the GPU to claims again."""
        self._node.withdraw_reboot()
        self._node.release_slot()
        text = f"{gpu_name(case.gpu)} is healthy and offered again after {noun_of(case.action)}"
        self._node.send_event(RETURNED, text)
        return case.at(Stage.RETURNED, self._clock(), waits_for=f"after {noun_of(case.action)}")
