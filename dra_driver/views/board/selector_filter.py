"""The map's filter by a selector: which devices it accepts, on every node or on as many as there is time for.

In: a board, an expression, the nodes that other filters selected. Out: `SelectorMatches`. If a selector reads what
differs from node to node (a UUID), each device has to be judged by itself. In a large fleet that takes too long, so the
nodes are then judged in their order until time is up, and the result says how many were.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.model.errors import InputError
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.views.board.board import Board
from dra_driver.views.fleet.devices import Fleet, fleet_of_slices
from dra_driver.views.verdicts.given import Given
from dra_driver.views.verdicts.judge import MATCH, judge
from dra_driver.views.verdicts.queries import Query, WrittenSelector

MOST_APART = 4_000  # the most devices that are judged one by one
SECONDS = 0.25  # the time for nodes that are judged one by one
_NODES = 10  # nodes that are judged together
Accepted = Mapping[str, frozenset[tuple[str, str]]]  # driver and name of the devices that match, by node


@dataclass(frozen=True, slots=True)
class SelectorMatches:
    """The devices that a selector accepts. `note` says on how many nodes it was judged, if not on all of them."""

    accepted: Accepted
    note: str = ""


def is_apart(given: Given) -> bool:
    """Return whether a selector distinguishes nodes of one kind in a fleet that is too large to judge node by node."""
    fleet, expression = given.fleet, given.queries[0].selectors[0].expression
    if fleet.size <= MOST_APART or not fleet.repeats:
        return False
    try:
        reads = given.engine().compile(expression, environment=given.environment).read_set.reads
    except SelectorCompileError:
        return False
    return any(shape.varies_in(reads) for one in fleet.repeats for shape in one.shapes)


def selector_matches(board: Board, expression: str, names: Sequence[str], seconds: float = SECONDS) -> SelectorMatches:
    """Return the devices that a selector accepts on these nodes. Raises: InputError for one that does not compile."""
    given = _given(board, expression, board.fleet())
    if not is_apart(given):
        return SelectorMatches(_accepted(given))
    until, by_node = time.monotonic() + seconds, board.slices_by_node()
    found: dict[str, frozenset[tuple[str, str]]] = {}
    for at in range(0, len(names), _NODES):
        if time.monotonic() > until:
            note = f"it reads what differs from node to node: judged on the first {at:,} of {len(names):,} nodes"
            return SelectorMatches(found, note)
        slices = [(one["metadata"]["name"], one) for name in names[at : at + _NODES] for one in by_node[name]]
        found.update(_accepted(_given(board, expression, fleet_of_slices(slices, board.source).unfolded())))
    return SelectorMatches(found)


def _given(board: Board, expression: str, fleet: Fleet) -> Given:
    query = Query("filter", "filter", [WrittenSelector("-e", expression)])
    return Given(fleet, [query], board.rules.kubernetes, {}, "stored")


def _accepted(given: Given) -> Accepted:
    [judged] = judge(given.queries, given.fleet, given.engine(), "stored")
    if (error := judged.compiled[0].error) is not None:
        raise InputError("selector", f"the filter's selector does not compile: {error.text}")
    found = {
        node: frozenset((one.driver, one.name) for one in held[MATCH])
        for node, held in judged.by_node().items()
        if held[MATCH]
    }
    return found | {name: found[node] for node, names in judged.like.items() if node in found for name in names}
