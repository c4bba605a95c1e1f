"""ChannelStage: the stage that adds the node's IMEX channel to the findings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.agent.inventory.node_inventory import InventoryInputs
from dra_driver.agent.inventory.wrapping_stage import WrappingStage
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.hardware.port import ChannelOffering

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import FactsStage


class ChannelStage(WrappingStage):
    """Adds the channel to the findings of the inner stage."""

    def __init__(self, inner: FactsStage, hardware: ChannelOffering) -> None:
        super().__init__(inner)
        self._hardware = hardware

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the findings of the inner stage with the channel. Raises: DriverError."""
        findings = self._inner.assess(facts)
        found = self._hardware.channel(findings.facts)
        if isinstance(found, Problem):
            problems = (*findings.facts.problems, found)
            return replace(findings, facts=replace(findings.facts, problems=problems, channel=None))
        return replace(findings, facts=replace(findings.facts, channel=found))
