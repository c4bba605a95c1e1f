"""PassthroughStage: the stage that adds the GPUs for virtual machines to the findings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.agent.inventory.node_inventory import InventoryInputs
from dra_driver.agent.inventory.wrapping_stage import WrappingStage
from dra_driver.agent.passthrough.passthrough_gpus import PassthroughGpus
from dra_driver.agent.passthrough.returned_gpus import ReturnedGpus
from dra_driver.hardware.facts import Facts

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import FactsStage


class PassthroughStage(WrappingStage):
    """Has the inner stage assess the vendor's facts, and adds the GPUs for virtual machines."""

    def __init__(self, inner: FactsStage, named: PassthroughGpus, returned: ReturnedGpus) -> None:
        super().__init__(inner)
        self._named, self._returned = named, returned

    def fingerprint(self) -> Hashable:
        """Return a value that changes when the inputs of the inventory have to be determined again."""
        return super().fingerprint(), self._named.fingerprint(), self._returned.fingerprint()

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the inputs from the inner stage, with the GPUs for virtual machines. Raises: DriverError."""
        reported = tuple(
            replace(gpu, passthrough=None)
            for gpu in facts.gpus
            if gpu.passthrough is None or not (gpu.passthrough.is_away or gpu.minor < 0)
        )
        findings = self._inner.assess(replace(facts, gpus=reported))
        return replace(findings, facts=self._returned.checked(self._named.completed(findings.facts)))
