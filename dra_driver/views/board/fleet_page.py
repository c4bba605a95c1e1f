"""A page of the fleet map: some of the nodes that a filter selects, with their devices drawn to scale.

In: a board and a `FleetFilter`. Out: the documents of the page and of the fleet as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dra_driver.model.wire import Wire
from dra_driver.views.access import unseen_document
from dra_driver.views.board.board import Board
from dra_driver.views.board.figures import Figures
from dra_driver.views.board.selector_filter import Accepted, SelectorMatches, selector_matches
from dra_driver.views.board.tiles import Tile, tiles_of
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.labels import label_selector

MAX_NODES = 100  # nodes of one page


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Which nodes to show; "" selects all. `state` is one that a GPU of the node has; `expression` is a selector."""

    name: str = ""
    labels: str = ""
    model: str = ""
    namespace: str = ""
    state: str = ""
    expression: str = ""


def fleet_summary(board: Board) -> OutputDocument:
    """Return the document of the fleet as a whole."""
    content = {
        **Figures(board).totals(),
        "version": board.version,
        "source": board.source,
        "live": board.is_live,
        "kubernetes": board.rules.kubernetes,
        "gates": board.rules.words,
        "notes": [*board.world.profile_notes, *_left_out(board)],
        "claims": board.count("ResourceClaim"),
        "pods": board.count("Pod"),
        "namespaces": sorted({one["metadata"].get("namespace") or "default" for one in board.of("ResourceClaim")})[
            :500
        ],
        "loading": sorted({"ResourceSlice", "ResourceClaim"} - board.loaded),
        "unseen": unseen_document(board.world.unseen),
    }
    return OutputDocument(DocumentKind.FLEET_SUMMARY, content)


def _left_out(board: Board) -> list[str]:
    return [
        f"{kind}s without the shape of their kind are left out: {count:,}"
        for kind, count in sorted(board.left_out.items())
        if count
    ]


def fleet_page(board: Board, wanted: FleetFilter, offset: int, count: int) -> OutputDocument:
    """Return the document of some nodes. Raises: UsageError for wrong labels; InputError for a wrong selector."""
    names, matches = _chosen(board, wanted)
    shown = names[offset : offset + min(count, MAX_NODES)]
    nodes = [_node_document(board, name, matches.accepted if matches else None) for name in shown]
    notes = [matches.note] if matches and matches.note else []
    content = {"version": board.version, "total": len(board.slices_by_node()), "matching": len(names)}
    return OutputDocument(DocumentKind.FLEET_PAGE, {**content, "offset": offset, "nodes": nodes, "notes": notes})


def _chosen(board: Board, wanted: FleetFilter) -> tuple[list[str], SelectorMatches | None]:
    """Return the nodes that a filter selects, and the devices that its selector accepts; None without a selector."""
    by_node = board.slices_by_node()
    names: Iterable[str] = by_node
    if wanted.name:
        names = [one for one in names if wanted.name.lower() in one.lower()]
    if wanted.labels:
        has_labels = label_selector(wanted.labels)
        names = [one for one in names if has_labels(board.find("Node", "", one) or {"metadata": {}})]
    if wanted.namespace:
        pools = {
            pool
            for pool, devices in board.held().items()
            for holders in devices.values()
            for one in holders
            if (one.claim["metadata"].get("namespace") or "default") == wanted.namespace
        }
        names = [one for one in names if any(_pool_of(wire) in pools for wire in by_node[one])]
    if wanted.model or wanted.state:
        figures = Figures(board).by_node
        model = wanted.model.lower()
        names = [one for one in names if not model or any(model in p.lower() for p in figures[one].products)]
        names = [one for one in names if not wanted.state or dict(figures[one].states).get(wanted.state)]
    if not wanted.expression.strip():
        return list(names), None
    matches = selector_matches(board, wanted.expression, list(names))
    return [one for one in names if matches.accepted.get(one)], matches


def _pool_of(wire: Wire) -> tuple[str, str]:
    return wire["spec"]["driver"], wire["spec"]["pool"]["name"]


def _node_document(board: Board, name: str, matches: Accepted | None) -> Wire:
    node = board.find("Node", "", name) or {}
    tiles = tiles_of(board.slices_by_node()[name], board.held())
    matching = None if matches is None else matches.get(name, frozenset())
    return {
        "node": name,
        "schedulable": not (node.get("spec") or {}).get("unschedulable"),
        "ready": _is_ready(node),
        "tiles": [_tile_document(one, matching) for one in tiles],
    }


def _tile_document(tile: Tile, matching: frozenset[tuple[str, str]] | None) -> Wire:
    parts = [
        {**plain(one), "matches": None if matching is None else (tile.driver, one.device) in matching}
        for one in tile.parts
    ]
    return {**plain(replace(tile, parts=())), "parts": parts}


def _is_ready(node: Wire) -> bool:
    """Return whether a node's kubelet is ready; a node without conditions is simulated, and counts as ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")
