"""Channel judge: another judge's judgements, completed by the node's IMEX channel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.agent.inventory.node_inventory import Findings
from dra_driver.agent.inventory.wrapping_judge import WrappingJudge
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.hardware.port import ChannelOffering

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import OfferJudge


class ChannelJudge(WrappingJudge):
    """Lets another judge decide, and adds the channel."""

    def __init__(self, judge: OfferJudge, hardware: ChannelOffering) -> None:
        super().__init__(judge)
        self._hardware = hardware

    def judge(self, facts: Facts) -> Findings:
        """Return the findings, completed. Raises: DriverError."""
        findings = self._judge.judge(facts)
        found = self._hardware.channel(findings.facts)
        if isinstance(found, Problem):
            told = (*findings.facts.problems, found)
            return replace(findings, facts=replace(findings.facts, problems=told, channel=None))
        return replace(findings, facts=replace(findings.facts, channel=found))
