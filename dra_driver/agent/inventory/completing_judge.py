"""Completing judge: facts are judged as they are, then completed by the GPUs that are lost.

A lost GPU that claims hold must stay published: once a device is gone from the slices, nothing can show that it is
sick, and the scheduler would allocate what it takes of its counters a second time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.agent.inventory.node_inventory import Findings
from dra_driver.hardware.facts import Facts

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import OfferJudge
    from dra_driver.agent.node_health import NodeHealth


class CompletingJudge:
    """Another judge's judgements, with the lost GPUs added."""

    def __init__(self, judge: OfferJudge, health: NodeHealth) -> None:
        self._judge, self._health = judge, health

    @property
    def is_settled(self) -> bool:
        """Return whether the last judgement is final."""
        return self._judge.is_settled

    def fingerprint(self) -> Hashable:
        """Return a value whose change makes a new judgement necessary."""
        return self._judge.fingerprint()

    def judge(self, facts: Facts) -> Findings:
        """Return the findings, completed. Raises: DriverError."""
        here = replace(facts, gpus=tuple(gpu for gpu in facts.gpus if not gpu.is_lost))
        findings = self._judge.judge(here)
        return replace(findings, facts=self._health.completed(findings.facts))
