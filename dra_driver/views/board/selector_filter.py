"""The map's filter by a selector: which devices it accepts, on all nodes or on as many as there is time for.

In: a board, an expression, the nodes that other filters selected. Out: `SelectorMatches`. A selector is usually
evaluated once for all equal devices. If it reads values that differ between nodes (a UUID), every device has to be
evaluated, which takes too long in a large fleet: then the nodes are evaluated in their order until the time is over,
and the result says how many were.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.model.errors import InputError
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.views.board.board import Board
from dra_driver.views.fleet.devices import Fleet
from dra_driver.views.fleet.published_fleet import fleet_of_slices
from dra_driver.views.verdicts.inputs import SelectorInputs
from dra_driver.views.verdicts.queries import Query, WrittenSelector
from dra_driver.views.verdicts.query_verdicts import MATCH, judge

MAX_SINGLE = 4_000  # the largest fleet, in devices, in which every device is evaluated
SECONDS = 0.25  # the time in which as many nodes as possible are evaluated in a larger fleet
_NODES = 10  # nodes that are evaluated before the clock is read again
Accepted = Mapping[str, frozenset[tuple[str, str]]]  # driver and name of the devices that match, by node


@dataclass(frozen=True, slots=True)
class SelectorMatches:
    """The devices that a selector accepts. If it was not evaluated on all nodes, `note` says on how many it was."""

    accepted: Accepted
    note: str = ""


def distinguishes_many_nodes(given: SelectorInputs) -> bool:
    """Return whether a selector reads values that differ between nodes, in a fleet with too many devices for that."""
    fleet, expression = given.fleet, given.queries[0].selectors[0].expression
    if fleet.size <= MAX_SINGLE or not fleet.repeats:
        return False
    try:
        reads = given.engine().compile(expression, environment=given.environment).read_set.reads
    except SelectorCompileError:
        return False
    return any(shape.varies_in(reads) for one in fleet.repeats for shape in one.shapes)


def selector_matches(board: Board, expression: str, names: Sequence[str], seconds: float = SECONDS) -> SelectorMatches:
    """Return the devices that a selector accepts on these nodes. Raises: InputError for one that does not compile."""
    given = _given(board, expression, board.fleet())
    if not distinguishes_many_nodes(given):
        return SelectorMatches(_accepted(given))
    until, by_node = time.monotonic() + seconds, board.slices_by_node()
    found: dict[str, frozenset[tuple[str, str]]] = {}
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
        node: frozenset((one.driver, one.name) for one in held[MATCH])
        for node, held in judged.by_node().items()
        if held[MATCH]
    }
    return found | {name: found[node] for node, names in judged.like.items() if node in found for name in names}
