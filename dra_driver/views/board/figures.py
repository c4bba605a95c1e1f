"""The whole fleet in figures: how many GPUs of each node are in each state.

In: a board. Out: a `NodeFigure` for each node, and their sum. Nodes of which nothing is held and whose slices have the
same shapes have equal figures, which are computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from dra_driver.allocation.pools.replicas import Replica
from dra_driver.model.wire import Wire
from dra_driver.views.board.board import Board
from dra_driver.views.board.tiles import FREE, HELD, TAINTED, WITHHELD, Tile, tiles_of

_LETTERS = {FREE: "f", HELD: "h", TAINTED: "t", WITHHELD: "w"}


@dataclass(frozen=True, slots=True)
class NodeFigure:
    """The products of a node, its GPUs by state, and the letter of its worst state: f, h, t or w (see `_LETTERS`)."""

    products: tuple[str, ...]
    states: tuple[tuple[str, int], ...]
    letter: str


class Figures:
    """The figures of all nodes of a board as it is now."""

    def __init__(self, board: Board) -> None:
        self._held = board.held()
        self._known: dict[Hashable, NodeFigure] = {}
        self.by_node = {name: self._figure(slices) for name, slices in board.slices_by_node().items()}

    def _figure(self, slices: Sequence[Wire]) -> NodeFigure:
        key = self._key(slices)
        if key is None:
            return _figure_of(tiles_of(slices, self._held))
        if key not in self._known:
            self._known[key] = _figure_of(tiles_of(slices, self._held))
        return self._known[key]

    def _key(self, slices: Sequence[Wire]) -> Hashable:
        """Return a key that nodes with equal figures share; None if devices are held, or are not replicas."""
        key = []
        for one in slices:
            spec = one["spec"]
            devices, pool = spec.get("devices") or (), spec["pool"]
            if (spec["driver"], pool["name"]) in self._held or (devices and not isinstance(devices, Replica)):
                return None
            shape = id(devices.shape) if isinstance(devices, Replica) else 0
            key.append(
                (shape, pool.get("generation"), pool.get("resourceSliceCount"), len(spec.get("sharedCounters") or ()))
            )
        return tuple(key)

    def totals(self) -> Wire:
        """Return the sum over all nodes."""
        states: Counter[str] = Counter()
        products: Counter[str] = Counter()
        for one in self.by_node.values():
            states.update(dict(one.states))
            products.update(one.products)
        return {
            "nodes": len(self.by_node),
            "gpus": sum(states.values()),
            "states": {state: states.get(state, 0) for state in _LETTERS},
            "products": dict(products.most_common(20)),
            "strip": "".join(one.letter for one in self.by_node.values()),
        }


def _figure_of(tiles: Sequence[Tile]) -> NodeFigure:
    gpus = [one for one in tiles if one.kind == "gpu"]
    states = Counter(one.state for one in gpus)
    worst = next((state for state in (TAINTED, WITHHELD) if states[state]), "")
    letter = _LETTERS[worst or (HELD if states[HELD] else FREE)]
    return NodeFigure(tuple(one.product for one in gpus), tuple(sorted(states.items())), letter)
