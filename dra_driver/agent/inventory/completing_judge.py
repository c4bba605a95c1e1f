"""Completing judge: another judge's judgement, to which the lost GPUs are added.

A lost GPU that claims hold must stay published: once a device is gone from the slices, nothing can show that it is
faulty, and the scheduler would allocate the counters that it consumes a second time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.agent.inventory.node_inventory import Findings
from dra_driver.agent.inventory.wrapping_judge import WrappingJudge
from dra_driver.hardware.facts import Facts

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import OfferJudge
    from dra_driver.agent.node_health import NodeHealth


class CompletingJudge(WrappingJudge):
    """Another judge's judgements, with the lost GPUs added."""

    def __init__(self, judge: OfferJudge, health: NodeHealth) -> None:
        super().__init__(judge)
        self._health = health

    def judge(self, facts: Facts) -> Findings:
        """Return the findings, completed. Raises: DriverError."""
        here = replace(facts, gpus=tuple(gpu for gpu in facts.gpus if not gpu.is_lost))
        findings = self._judge.judge(here)
        return replace(findings, facts=self._health.completed(findings.facts))
