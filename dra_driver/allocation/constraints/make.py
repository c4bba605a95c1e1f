"""The construction of a claim's constraints.

In: one entry of a claim's `constraints`. Out: a `Constraint`, or nothing for a kind that a version does not know.
"""

from __future__ import annotations

from dra_driver.allocation.constraints.constraint import Constraint
from dra_driver.allocation.constraints.lists import DistinctLists, MatchLists
from dra_driver.allocation.constraints.single_values import (
    DistinctAttribute,
    MatchAttribute,
    PairwiseDistinctAttribute,
)
from dra_driver.model.wire import Wire


def make_constraint(
    wire: Wire, *, knows_distinct: bool, forgets: bool = True, lists: bool = False
) -> Constraint | None:
    """Make a constraint without any devices; return None for a kind that the allocator does not know."""
    requests = frozenset(wire.get("requests") or ())
    if wire.get("matchAttribute") is not None:
        if lists:
            return MatchLists(wire["matchAttribute"], requests, keeps=forgets)
        return MatchAttribute(wire["matchAttribute"], requests)
    if knows_distinct and wire.get("distinctAttribute") is not None:
        if lists:
            return DistinctLists(wire["distinctAttribute"], requests, forgets=forgets)
        kind = DistinctAttribute if forgets else PairwiseDistinctAttribute
        return kind(wire["distinctAttribute"], requests)
    return None
