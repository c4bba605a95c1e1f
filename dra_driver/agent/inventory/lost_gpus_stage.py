"""LostGpusStage: the stage that adds the lost GPUs to the findings.

A lost GPU that claims hold must stay published: once a device is gone from the slices, nothing can show that it is
faulty, and the scheduler would allocate the counters that it consumes a second time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from dra_driver.agent.inventory.node_inventory import InventoryInputs
from dra_driver.agent.inventory.wrapping_stage import WrappingStage
from dra_driver.hardware.facts import Facts

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import FactsStage


class LostGpus(Protocol):
    """What is known of the GPUs that are lost."""

    @property
    def is_loaded(self) -> bool:
        """Return whether what was known before could be read."""

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the lost GPUs."""


class LostGpusStage(WrappingStage):
    """Adds the lost GPUs, which `known` knows, to the findings of the inner stage."""

    def __init__(self, inner: FactsStage, known: LostGpus) -> None:
        super().__init__(inner)
        self._known = known

    def fingerprint(self) -> Hashable:
        """Return a value that changes when the inputs of the inventory have to be determined again."""
        return super().fingerprint(), self._known.is_loaded

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the findings of the inner stage with the lost GPUs. Raises: DriverError."""
        here = replace(facts, gpus=tuple(gpu for gpu in facts.gpus if not gpu.is_lost))
        findings = self._inner.assess(here)
        return replace(findings, facts=self._known.completed(findings.facts))
