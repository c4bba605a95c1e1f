"""A node as the map draws it: its devices as tiles, and the parts of each GPU to scale.

In: the slices of a node, and which claims hold which devices. Out: `Tile`s. A MIG partition is drawn where its memory
slices lie in the GPU; the replicas of a shared GPU are drawn as equal parts. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.allocation.capacity import Replica
from dra_driver.allocation.pools import DeviceId, DeviceRecord, PoolId, SliceRecord
from dra_driver.allocation.usage import claim_name, taint_text
from dra_driver.base.names import gpu_of_device
from dra_driver.base.wire import DeviceWire, TaintEffect, Wire
from dra_driver.tools.console.board import Board
from dra_driver.tools.console.fleet_filter import Accepted, SelectorMatches, selector_matches
from dra_driver.tools.fleet.branches import Holding, is_held
from dra_driver.tools.fleet.template import counters_left, counters_used, fits
from dra_driver.tools.world.access import DocumentKind, OutputDocument, plain, unseen_document
from dra_driver.tools.world.fields import label_selector
from dra_driver.tools.world.profiles import attribute_of, memory_of, memory_text, profile_of, string_of

FREE, HELD, TAINTED, WITHHELD = "free", "held", "tainted", "withheld"
_WORST = (TAINTED, WITHHELD, HELD, FREE)
_SLICE = re.compile(r"memory(?:Slice|-slice-)(\d+)")  # the name as a capacity, or as a counter
# MIG divides the memory of a GPU into 8 slices, of an A30 into 4. Source: NVIDIA MIG User Guide, supported profiles.
_SLICES, _SLICES_OF_A30 = 8, 4
_WHOLE = (0.0, 1.0)
_MAX_USERS = 20  # pods of a part
Held = Mapping[DeviceId, Sequence[Holding]]  # the holdings of the devices of one pool


@dataclass(frozen=True, slots=True)
class TilePart:
    """A part of a tile: a device, or room in which devices could be made.

    `start` and `size` are fractions of the tile, from 0 to 1. `device` is "" for room. `users` are the pods for which
    the claims of `holders` are reserved.
    """

    device: str
    label: str
    start: float
    size: float
    state: str
    holders: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One GPU, or another device. `kind` is gpu or other; `memory` is in GiB, with the published quantity."""

    name: str
    driver: str
    pool: str
    kind: str
    product: str
    memory: str
    numa: str
    pcie_root: str
    link_domain: str
    state: str
    parts: tuple[TilePart, ...]


def tiles_of(slices: Sequence[Wire], held: Mapping[PoolId, Held]) -> list[Tile]:
    """Return the tiles of one node, GPUs first, each kind in the order of NUMA nodes, PCIe roots and names."""
    pools: dict[tuple[str, str], list[SliceRecord]] = {}
    for order, wire in enumerate(slices):
        record = SliceRecord(wire, order)
        pools.setdefault(record.pool_id, []).append(record)
    found = [tile for pool, records in pools.items() for tile in _pool(records, held.get(pool, {}))]
    return sorted(found, key=lambda one: (one.kind != "gpu", one.numa, one.pcie_root, one.name))


def _pool(records: Sequence[SliceRecord], held: Held) -> Iterator[Tile]:
    newest = max(one.generation for one in records)
    current = [one for one in records if one.generation == newest]
    is_whole = len(current) == current[0].count
    sets = {one["name"]: one for record in current for one in record.sets}
    groups: dict[str, list[DeviceRecord]] = {}
    for record in current:
        for device in record.devices:
            groups.setdefault(gpu_of_device(device.id[2]), []).append(device)
    for name, devices in groups.items():
        tile = _tile(name, devices, held, sets)
        yield tile if is_whole else _withheld(tile)
    names = {device.id[2] for devices in groups.values() for device in devices}
    for key, holders in held.items():
        if key[2] not in names:
            part = TilePart(key[2], "not published", *_WHOLE, WITHHELD, _names(holders), _users(holders))
            yield Tile(key[2], *key[:2], "gpu", "", "", "-", "-", "-", WITHHELD, (part,))


def _withheld(tile: Tile) -> Tile:
    """Return a tile of an incomplete pool, whose free devices are withheld, because no claim gets them."""
    parts = tuple(replace(one, state=WITHHELD) if one.state == FREE else one for one in tile.parts)
    return _with_parts(tile, parts)


def _tile(name: str, devices: Sequence[DeviceRecord], held: Held, sets: Mapping[str, Wire]) -> Tile:
    wire = next((one.wire for one in devices if one.id[2] == name), devices[0].wire)
    driver, pool, _ = devices[0].id
    is_gpu = driver.partition(".")[0] == "gpu" or (string_of(wire, "type") or "") in {"gpu", "mig"}
    memory = memory_of(wire) if wire["name"] == name else None
    tile = Tile(
        name,
        driver,
        pool,
        "gpu" if is_gpu else "other",
        string_of(wire, "productName") or string_of(wire, "model") or driver,
        memory_text(memory) if memory else "",
        attribute_of(wire, "numaNode"),
        attribute_of(wire, "pcieRoot"),
        attribute_of(wire, "nvlinkDomain"),
        FREE,
        (),
    )
    return _with_parts(tile, tuple(_parts(name, devices, held, sets)))


def _with_parts(tile: Tile, parts: tuple[TilePart, ...]) -> Tile:
    state = next((state for state in _WORST if any(one.state == state for one in parts)), FREE)
    return replace(tile, state=state, parts=parts)


def _parts(name: str, devices: Sequence[DeviceRecord], held: Held, sets: Mapping[str, Wire]) -> Iterator[TilePart]:
    """Yield the parts of a GPU as they are drawn: those that are held or tainted, and the room between them."""
    if len(devices) == 1 and devices[0].id[2] == name:
        yield _part(devices[0], held, _WHOLE)
        return
    if any(one.counter_amounts and one.counter_amounts[0][0] in sets for one in devices):
        yield from _on_demand(name, devices, held, sets)
        return
    shares = [one for one in devices if "-share-" in one.id[2]]
    places = {id(one): (number / len(shares), 1 / len(shares)) for number, one in enumerate(shares)}
    drawn = sorted(
        (_part(one, held, places.get(id(one)) or place_of(one.wire)) for one in devices if one.id[2] != name),
        key=lambda one: one.start,
    )
    yield from drawn
    if not shares:
        yield from _gaps(drawn, lambda _start, _size: WITHHELD, "not partitioned")


def _on_demand(name: str, devices: Sequence[DeviceRecord], held: Held, sets: Mapping[str, Wire]) -> Iterator[TilePart]:
    """Yield the parts of a GPU whose partitions are made when claims need them."""
    whole = next((one for one in devices if one.id[2] == name), None)
    if whole is not None and (_is_held(whole, held) or _is_tainted(whole.wire)):
        yield _part(whole, held, _WHOLE)
        return
    kept = [one for one in devices if one is not whole and (_is_held(one, held) or _is_tainted(one.wire))]
    drawn = sorted((_part(one, held, place_of(one.wire)) for one in kept), key=lambda one: one.start)
    if not drawn:
        label = "whole or partitions" if whole is not None else "partitions"
        yield TilePart(whole.id[2] if whole else "", label, *_WHOLE, FREE)
        return
    names = {amounts[0] for one in devices for amounts in one.counter_amounts}
    used = counters_used(one for one in devices if _is_held(one, held))
    left = counters_left([sets[name] for name in names & sets.keys()], used)
    free = [place_of(one.wire) for one in devices if one is not whole and one not in kept and fits(one, left)]

    def state(start: float, size: float) -> str:
        return FREE if any(start <= at < start + size for at, _ in free) else WITHHELD

    yield from sorted([*drawn, *_gaps(drawn, state, "room for partitions")], key=lambda one: one.start)


def _gaps(drawn: Sequence[TilePart], state: Callable[[float, float], str], label: str) -> Iterator[TilePart]:
    at = 0.0
    for start, end in [*((one.start, one.start + one.size) for one in drawn), (1.0, 1.0)]:
        if start - at > 0.01:
            yield TilePart("", label, at, start - at, state(at, start - at))
        at = max(at, end)


def place_of(wire: DeviceWire) -> tuple[float, float]:
    """Return the place of a partition in its GPU: its start and its size, as fractions of the GPU's memory slices."""
    names = [name.rpartition("/")[2] for name in wire.get("capacity") or {}]
    names += [name for taken in wire.get("consumesCounters") or () for name in taken.get("counters") or {}]
    places = {int(found[1]) for name in names if (found := _SLICE.fullmatch(name))}
    if not places:
        return _WHOLE
    of = _SLICES_OF_A30 if "A30" in (string_of(wire, "productName") or "") else _SLICES
    of = max(of, max(places) + 1)
    return min(places) / of, len(places) / of


def _part(device: DeviceRecord, held: Held, place: tuple[float, float]) -> TilePart:
    holders = held.get(device.id, ())
    state = TAINTED if _is_tainted(device.wire) else HELD if is_held(holders) else FREE
    taints = tuple(taint_text(one) for one in device.wire.get("taints") or ())
    label = profile_of(device.wire) or string_of(device.wire, "type") or ""
    return TilePart(device.id[2], label, *place, state, _names(holders), _users(holders), taints)


def _is_tainted(wire: DeviceWire) -> bool:
    """Return whether a device has a taint that keeps pods away; a taint with the effect None only informs."""
    return any(one.get("effect") != TaintEffect.NONE for one in wire.get("taints") or ())


def _is_held(device: DeviceRecord, held: Held) -> bool:
    return is_held(held.get(device.id, ()))


def _names(holders: Sequence[Holding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim_name(one.claim) for one in holders))


def _users(holders: Sequence[Holding]) -> tuple[str, ...]:
    users = (user for one in holders for user in (one.claim.get("status") or {}).get("reservedFor") or ())
    return tuple(dict.fromkeys(str(one.get("name")) for one in users))[:_MAX_USERS]


# The whole fleet in figures: how many GPUs of each node are in each state.

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


# A page of the fleet map: some of the nodes that a filter selects, with their devices drawn to scale.

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


def _tile_document(tile: Tile, matching: frozenset[DeviceId] | None) -> Wire:
    parts = [
        {**plain(one), "matches": None if matching is None else (tile.driver, tile.pool, one.device) in matching}
        for one in tile.parts
    ]
    return {**plain(replace(tile, parts=())), "parts": parts}


def _is_ready(node: Wire) -> bool:
    """Return whether a node's kubelet is ready; a node without conditions is simulated, and counts as ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")
