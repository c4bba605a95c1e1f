"""The map's filter by a selector: which devices it accepts, on all nodes or on as many as there is time for.

In: a board and an expression. Out: the devices that match, by node.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.allocation.pools import DeviceId
from dra_driver.base.errors import InputError
from dra_driver.tools.cel.verdicts import MATCH, judge
from dra_driver.tools.console.board import Board
from dra_driver.tools.console.playground import distinguishes_many_nodes
from dra_driver.tools.world.fleet import Fleet, fleet_of_slices
from dra_driver.tools.world.queries import Query, SelectorInputs, WrittenSelector

SECONDS = 0.25  # the time in which as many nodes as possible are evaluated in a larger fleet
_NODES = 10  # nodes that are evaluated before the clock is read again
Accepted = Mapping[str, frozenset[DeviceId]]  # the devices that match, by node


@dataclass(frozen=True, slots=True)
class SelectorMatches:
    """The devices that a selector accepts. If it was not evaluated on all nodes, `note` says on how many it was."""

    accepted: Accepted
    note: str = ""


def selector_matches(board: Board, expression: str, names: Sequence[str], seconds: float = SECONDS) -> SelectorMatches:
    """Return the devices that a selector accepts on these nodes. Raises: InputError for one that does not compile."""
    given = _given(board, expression, board.fleet())
    if not distinguishes_many_nodes(given):
        return SelectorMatches(_accepted(given))
    until, by_node = time.monotonic() + seconds, board.slices_by_node()
    found: dict[str, frozenset[DeviceId]] = {}
    for at in range(0, len(names), _NODES):
        if time.monotonic() > until:
            note = f"it reads values that differ between nodes: judged on the first {at:,} of {len(names):,} nodes"
            return SelectorMatches(found, note)
        slices = [(one["metadata"]["name"], one) for name in names[at : at + _NODES] for one in by_node[name]]
        found.update(_accepted(_given(board, expression, fleet_of_slices(slices, board.source).unfolded())))
    return SelectorMatches(found)


def _given(board: Board, expression: str, fleet: Fleet) -> SelectorInputs:
    query = Query("filter", "filter", [WrittenSelector("-e", expression)])
    return SelectorInputs(fleet, [query], board.rules.kubernetes, {}, "stored")


def _accepted(given: SelectorInputs) -> Accepted:
    [judged] = judge(given.queries, given.fleet, given.engine(), "stored")
    if (error := judged.compiled[0].error) is not None:
        raise InputError("selector", f"the filter's selector does not compile: {error.text}")
    found = {
        node: frozenset((one.driver, one.pool, one.name) for one in held[MATCH])
        for node, held in judged.by_node().items()
        if held[MATCH]
    }
    return found | {
        name: frozenset((driver, name, device) for driver, _, device in found[node])  # equal pools have nodes' names
        for node, names in judged.like.items()
        if node in found
        for name in names
    }
