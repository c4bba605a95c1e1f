"""Explain subjects one after the other, each with the devices of the earlier ones taken.

In: a world, the rules that apply, and subjects. Out: the allocator's explanation of each. A subject that fits takes its
devices on the first node on which it fits, so that they are not free for the next one; a claim that several subjects
share is allocated once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.explaining.explanation import AllocationExplanation, explain
from dra_driver.allocation.explaining.node_kinds import FEW_NODES
from dra_driver.allocation.pools.held import claim_name
from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import Since
from dra_driver.model.wire import Wire
from dra_driver.views.progress import NoProgress, ProgressLines, counted
from dra_driver.views.wording import nearest
from dra_driver.views.worlds.rules import AppliedRules
from dra_driver.views.worlds.subjects import ExplainedSubject
from dra_driver.views.worlds.world import World

_COMPARED = "1.35"  # between it and the next one, verdicts changed most
_NEWER = f"1.{Since.SORTED_SEARCH}"


class SubjectExplainer:
    """Explains subjects in the state of a cluster, which changes with every subject that fits."""

    def __init__(
        self, world: World, rules: AppliedRules, only: Sequence[str] = (), lines: ProgressLines = NoProgress
    ) -> None:
        state: Any = {
            "slices": world.of("ResourceSlice"),
            "classes": world.of("DeviceClass"),
            "allocated": world.allocated(),
        }
        self._allocator = Allocator(**state, kubernetes=rules.kubernetes, gates=rules.gates)
        self._newer = None
        if self._allocator.rules.kubernetes == _COMPARED:
            self._newer = Allocator(**state, kubernetes=_NEWER, features=self._allocator.features)
        self._nodes = _nodes(world, only)
        self._lines = lines
        self._made: dict[str, Wire] = {}

    @property
    def is_exact(self) -> bool:
        """Whether there are recorded verdicts of this version of Kubernetes."""
        return self._allocator.rules.exact

    def explain(self, subject: ExplainedSubject) -> AllocationExplanation | None:
        """Explain one subject; return None if it already has an answer."""
        if subject.answer:
            return None
        known = [self._made.get(claim_name(claim)) for claim in subject.claims]
        claims = [claim for claim, made in zip(subject.claims, known, strict=True) if made is None]
        allocated = [*subject.allocated, *(made for made in known if made is not None)]
        explanation = explain(
            self._allocator,
            claims,
            counted(self._nodes, "nodes", self._lines),
            pod=subject.pod,
            allocated=allocated,
            newer=self._newer,
            folds=len(self._nodes) > FEW_NODES,
        )
        if explanation.ok:
            self._take(claims, explanation)
        return explanation

    def _take(self, claims: Sequence[Wire], explanation: AllocationExplanation) -> None:
        outcome = next(node.outcome for node in explanation.nodes if node.ok)
        for claim, result in zip(claims, (outcome.results if outcome else None) or (), strict=True):
            made = {**claim, "status": {"allocation": result}}
            self._made[claim_name(claim)] = made
            for one in (self._allocator, self._newer):
                if one is not None:
                    one.hold(made)


def _nodes(world: World, only: Sequence[str]) -> list[Wire]:
    """Return the nodes, or only the named ones. Raises: InputError("input.missing") for a name that no node has."""
    nodes = {node["metadata"]["name"]: node for node in world.of("Node")}
    if missing := [name for name in only if name not in nodes and not world.is_unseen("Node")]:
        raise InputError("missing", f"there is no node {missing[0]}", hint=nearest(missing[0], sorted(nodes)[:20]))
    return [node for name, node in nodes.items() if not only or name in only]
