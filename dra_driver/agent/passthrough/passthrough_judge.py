"""PassthroughJudge: another judge's judgements, completed by the GPUs that virtual machines may have."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.agent.inventory.node_inventory import Findings
from dra_driver.agent.inventory.wrapping_judge import WrappingJudge
from dra_driver.agent.passthrough.passthrough_gpus import PassthroughGpus
from dra_driver.agent.passthrough.returned_gpus import ReturnedGpus
from dra_driver.hardware.facts import Facts

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import OfferJudge


class PassthroughJudge(WrappingJudge):
    """Judges what the vendor reports by another judge, and adds the rest."""

    def __init__(self, judge: OfferJudge, named: PassthroughGpus, returned: ReturnedGpus) -> None:
        super().__init__(judge)
        self._named, self._returned = named, returned

    def fingerprint(self) -> Hashable:
        """Return a value whose change makes a new judgement necessary."""
        return super().fingerprint(), self._named.fingerprint()

    def judge(self, facts: Facts) -> Findings:
        """Return the findings, completed. Raises: DriverError."""
        reported = tuple(
            replace(gpu, passthrough=None)
            for gpu in facts.gpus
            if gpu.passthrough is None or not (gpu.passthrough.is_away or gpu.minor < 0)
        )
        findings = self._judge.judge(replace(facts, gpus=reported))
        return replace(findings, facts=self._returned.checked(self._named.completed(findings.facts)))
