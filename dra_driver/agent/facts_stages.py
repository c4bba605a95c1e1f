"""Stages: what completes the facts of a scan before and after the offer decides about them.

    facts ──► what the vendor reports ──► offer ──► lost GPUs ──► GPUs for virtual machines ──► channel ──► findings

A stage is two functions from facts to facts and a fingerprint. The first function leaves out what the offer must not
decide about, the second adds what the stage knows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dra_driver.agent.inventory.node_inventory import InventoryInputs
from dra_driver.hardware.facts import Facts, Problem

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import FactsStage
    from dra_driver.agent.passthrough.node_passthrough import NodePassthrough
    from dra_driver.hardware.port import ChannelOffering


def _unchanged(facts: Facts) -> Facts:
    return facts


@dataclass(frozen=True, slots=True)
class FactsChange:
    """What one part of the agent leaves out of the facts before the offer, and adds to them after it."""

    completed: Callable[[Facts], Facts]
    reported: Callable[[Facts], Facts] = _unchanged
    fingerprint: Callable[[], Hashable] = tuple  # changes when the facts have to be completed again


class StagedFacts:
    """The offer between its stages, for the scanner."""

    def __init__(self, offer: FactsStage, stages: Sequence[FactsChange]) -> None:
        self._offer, self._stages = offer, stages

    @property
    def is_settled(self) -> bool:
        """Return whether the last inputs are final."""
        return self._offer.is_settled

    def fingerprint(self) -> Hashable:
        """Return a value that changes when the inputs of the inventory have to be determined again."""
        return self._offer.fingerprint(), *(stage.fingerprint() for stage in self._stages)

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the completed facts, and how they are offered. Raises: DriverError."""
        for stage in reversed(self._stages):
            facts = stage.reported(facts)
        inputs = self._offer.assess(facts)
        for stage in self._stages:
            inputs = replace(inputs, facts=stage.completed(inputs.facts))
        return inputs


class LostGpus(Protocol):
    """What is known of the GPUs that are lost."""

    @property
    def is_loaded(self) -> bool:
        """Return whether what was known before could be read."""

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the lost GPUs."""


def lost_gpus(known: LostGpus) -> FactsChange:
    """Return the stage of the lost GPUs, as `known` knows them.

    A lost GPU that claims hold must stay published: once a device is gone from the slices, nothing can show that it is
    faulty, and the scheduler would allocate the counters that it consumes a second time.
    """

    def reported(facts: Facts) -> Facts:
        return replace(facts, gpus=tuple(gpu for gpu in facts.gpus if not gpu.is_lost))

    return FactsChange(known.completed, reported, lambda: known.is_loaded)


def passed_gpus(passthrough: NodePassthrough) -> FactsChange:
    """Return the stage of the GPUs for virtual machines: the offer decides about what the vendor reports alone."""
    named, returned = passthrough.named, passthrough.returned

    def reported(facts: Facts) -> Facts:
        own = (
            replace(gpu, passthrough=None)
            for gpu in facts.gpus
            if gpu.passthrough is None or not (gpu.passthrough.is_away or gpu.minor < 0)
        )
        return replace(facts, gpus=tuple(own))

    def completed(facts: Facts) -> Facts:
        return returned.checked(named.completed(facts))

    return FactsChange(completed, reported, lambda: (named.fingerprint(), returned.fingerprint()))


def channel(hardware: ChannelOffering) -> FactsChange:
    """Return the stage of the node's IMEX channel."""

    def completed(facts: Facts) -> Facts:
        offered = hardware.channel(facts)
        if isinstance(offered, Problem):
            return replace(facts, problems=(*facts.problems, offered), channel=None)
        return replace(facts, channel=offered)

    return FactsChange(completed)
