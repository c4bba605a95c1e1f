"""The fleet in figures: devices and free devices of each node, and devices held by each namespace and class.

In: the branches of `slice_tree`, and claims as wire dicts. Out: rows. Nodes with equal figures share a row. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.allocation.capacity import Replica, text_without_attributes
from dra_driver.allocation.funnel import FEW_NODES
from dra_driver.allocation.pools import DeviceId, PoolId, SliceRecord
from dra_driver.base.wire import ClaimWire, DeviceType, SliceWire, Wire
from dra_driver.selectors.reads import Read
from dra_driver.tools.fleet.branches import (
    PRODUCT_ATTRIBUTES,
    Holding,
    Pods,
    allocation_results,
    gpu_branches,
    holdings,
    place_name,
    product_of,
    unpublished_devices,
)
from dra_driver.tools.fleet.template import Branch, BranchFlag, has_flags
from dra_driver.tools.world.fields import plural

MAX_ROWS = 8  # with more rows, the partitions of each profile are not listed
_GPU_TYPES = frozenset(map(str, DeviceType))
_SICK_FLAGS = frozenset({"taint", "incomplete", "pool-gone", "not-published"})


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The figures of one node, which are the same for each node in `like`.

    `products` counts the GPUs of each product, `others` the devices that are not GPUs, such as network cards.
    `partitions` are the free partitions by profile: how many could be made if no other profile were used.
    """

    node: str
    gpus: int = 0
    whole_free: int = 0
    partitions: tuple[tuple[str, int], ...] = ()
    held: int = 0
    sick: int = 0
    products: tuple[tuple[str, int], ...] = ()
    others: int = 0
    like: tuple[str, ...] = ()
    is_compact: bool = False

    @property
    def count(self) -> int:
        """The number of nodes in this row."""
        return 1 + len(self.like)

    @property
    def most_partitions(self) -> int:
        """The number of free partitions of the profile that has the most."""
        return max((count for _, count in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class HolderRow:
    """The devices that a namespace or the requests of a class hold; `waiting` counts claims without devices."""

    name: str
    claims: int
    devices: int
    waiting: int


def node_rows(branches: Iterable[Branch]) -> list[NodeRow]:
    """Return the figures of all nodes; nodes with equal figures share a row."""
    return _together((_node_row(branch), (branch.name, *branch.like)) for branch in branches)


def compact(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """Return the rows; if there are many, partitions are counted instead of listed, and equal rows are combined."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    short = (replace(row, partitions=(("", row.most_partitions),), is_compact=True) for row in rows)
    return _together((row, (row.node, *row.like)) for row in short)


def _together(rows: Iterable[tuple[NodeRow, Sequence[str]]]) -> list[NodeRow]:
    found: dict[NodeRow, list[str]] = {}
    for row, names in rows:
        found.setdefault(replace(row, node="", like=()), []).extend(names)
    return [replace(row, node=names[0], like=tuple(names[1:])) for row, names in found.items()]


def _node_row(node: Branch) -> NodeRow:
    """Return the figures of a node.

    In a pool that is gone or incomplete nothing counts as free, because no claim gets a device of it.
    """
    below = [(child, pool) for pool in node.children for child in pool.children]
    gpus = [(one, _is_broken(pool)) for one, pool in below if _is_gpu(one, str(pool.facts.get("driver", "")))]
    sound = [one for one, is_broken in gpus if not is_broken]
    parts: Counter[str] = Counter()
    for gpu in sound:
        parts.update(gpu.facts.get("freePartitions") or {})
    return NodeRow(
        node.name,
        len(gpus),
        sum(any(_is_whole(one) and one.facts.get("state") == "free" for one in _devices(gpu)) for gpu in sound),
        tuple(sorted(parts.items())),
        sum(device.facts.get("state") == "held" for gpu, _ in below for device in _devices(gpu)),
        len(gpus) - sum(not any(map(_is_broken, _devices(gpu))) for gpu in sound),
        tuple(sorted(Counter(filter(None, (_product(gpu) for gpu, _ in gpus))).items())),
        len(below) - len(gpus),
    )


def _is_broken(branch: Branch) -> bool:
    return any(flag.code in _SICK_FLAGS for flag in branch.flags)


def _is_gpu(branch: Branch, driver: str) -> bool:
    """Return whether devices are those of a GPU, by their type or by a driver's name such as gpu.example.com."""
    types = {device.facts.get("type") for device in _devices(branch)}
    return bool(types & _GPU_TYPES) or driver.partition(".")[0] == "gpu"


def _is_whole(device: Branch) -> bool:
    return not device.facts.get("profile") and not str(device.facts.get("type") or "").endswith("-share")


def _product(gpu: Branch) -> str:
    return next((str(device.facts["product"]) for device in _devices(gpu) if device.facts.get("product")), "")


def _devices(gpu: Branch) -> Sequence[Branch]:
    return gpu.children if gpu.kind == "set" else (gpu,)


def totals(rows: Sequence[NodeRow]) -> NodeRow:
    """Return the sum over all nodes; its `node` is ""."""
    parts: Counter[str] = Counter()
    products: Counter[str] = Counter()
    for row in rows:
        for found, pairs in ((parts, row.partitions), (products, row.products)):
            for name, count in pairs:
                found[name] += count * row.count
    return NodeRow(
        "",
        sum(row.gpus * row.count for row in rows),
        sum(row.whole_free * row.count for row in rows),
        tuple(sorted(parts.items())),
        sum(row.held * row.count for row in rows),
        sum(row.sick * row.count for row in rows),
        tuple(sorted(products.items())),
        sum(row.others * row.count for row in rows),
    )


def namespace_rows(claims: Iterable[ClaimWire]) -> list[HolderRow]:
    """Return the devices that each namespace holds."""
    return _holder_rows(
        (str(claim["metadata"].get("namespace") or "default"), claim, len(_held_results(claim))) for claim in claims
    )


def class_rows(claims: Iterable[ClaimWire]) -> list[HolderRow]:
    """Return what requests of each DeviceClass hold; a claim counts for each class that it asks for."""

    def pairs() -> Iterator[tuple[str, ClaimWire, int]]:
        for claim in claims:
            classes = _classes(claim)
            by_class = Counter(classes.get(str(result["request"]), "?") for result in _held_results(claim))
            for name in dict.fromkeys(classes.values()):
                if by_class[name] or not _held_results(claim):
                    yield name, claim, by_class[name]

    return _holder_rows(pairs())


def _holder_rows(pairs: Iterable[tuple[str, ClaimWire, int]]) -> list[HolderRow]:
    found: dict[str, HolderRow] = {}
    for name, claim, devices in pairs:
        row = found.get(name, HolderRow(name, 0, 0, 0))
        waits = not (claim.get("status") or {}).get("allocation")
        found[name] = HolderRow(name, row.claims + 1, row.devices + devices, row.waiting + waits)
    return sorted(found.values(), key=lambda row: (-row.devices, row.name))


def _held_results(claim: ClaimWire) -> Sequence[Wire]:
    return [result for result in allocation_results(claim) if not result.get("adminAccess")]


def _classes(claim: ClaimWire) -> dict[str, str]:
    """Return the class of each request, by the request's name in allocation results."""
    found: dict[str, str] = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        if exactly := request.get("exactly"):
            found[request["name"]] = str(exactly.get("deviceClassName") or "?")
        for alternative in request.get("firstAvailable") or ():
            found[f"{request['name']}/{alternative['name']}"] = str(alternative.get("deviceClassName") or "?")
    return found


def folded_tree(branches: Iterable[Branch]) -> list[Branch]:
    """Return the tree without devices that are free or blocked by held ones; a GPU shows how many are free instead."""
    return [_folded(branch) for branch in branches]


def _folded(branch: Branch) -> Branch:
    if branch.kind == "pool":
        return replace(branch, children=list(_equal_ones([_folded(child) for child in branch.children])))
    if branch.kind == "set":
        kept = [child for child in branch.children if child.children or has_flags([child])]
        free = [child for child in branch.children if child.facts.get("state") == "free"]
        parts = plural(sum(not _is_whole(one) for one in free), "placement")
        words = f"free: whole, or {parts}" if any(map(_is_whole, free)) else f"{parts} free"
        text = f"{words}, {branch.text}" if branch.text and branch.text != "partitions" else words
        return replace(branch, children=kept, text=text)
    return replace(branch, children=[_folded(child) for child in branch.children])


def _equal_ones(gpus: Sequence[Branch]) -> Iterator[Branch]:
    """Yield GPUs; equal ones of which nothing is held share a line."""
    found: dict[tuple[str, str], list[Branch]] = {}
    for gpu in gpus:
        is_idle = not gpu.children and not gpu.flags and gpu.facts.get("state", "free") == "free"
        found.setdefault((gpu.text, "" if is_idle else gpu.name), []).append(gpu)
    for equal in found.values():
        first = equal[0]
        name = f"{first.name} and {len(equal) - 1} more like it" if len(equal) > 1 else first.name
        yield replace(first, name=name)


# A cluster as a tree: node, pool, GPU, device, claim, pod.

_SEVERAL = "(several nodes)"
_DRAWN = tuple(Read("attributes", None, name) for name in PRODUCT_ATTRIBUTES)


def slice_tree(
    slices: Sequence[SliceWire] | None, claims: Sequence[ClaimWire], pods: Sequence[Wire] | None = None
) -> list[Branch]:
    """Return the nodes with their pools, devices, claims and pods. `slices` and `pods` are None if they are not known.

    Without slices, only what claims hold is known, and none of it counts as missing.
    """
    held = holdings(claims)
    known = None if pods is None else {(p["metadata"].get("namespace"), p["metadata"]["name"]): p for p in pods}
    pools: dict[PoolId, list[SliceRecord]] = {}
    for order, wire in enumerate(slices or ()):
        record = SliceRecord(wire, order)
        pools.setdefault(record.pool_id, []).append(record)
    nodes: dict[str, list[list[SliceRecord]]] = {}
    for _, records in sorted(pools.items()):
        nodes.setdefault(records[0].spec.get("nodeName") or _SEVERAL, []).append(records)
    busy = {key[:2] for key in held}
    branches = []
    for names in _equal_nodes({name: nodes[name] for name in sorted(nodes)}, busy):
        branch = Branch("node", names[0], like=tuple(names[1:]))
        branch.children = [_pool(records, held, known) for records in nodes[names[0]]]
        branches.append(branch)
    by_name = {one.name: one for one in branches}
    for pool in dict.fromkeys(key[:2] for key in held if key[:2] not in pools):
        name = _node_of(pool, held, known)
        by_name.setdefault(name, Branch("node", name)).children.append(
            _unpublished_pool(pool, held, known, is_known=slices is not None)
        )
    return list(by_name.values())


def _unpublished_pool(pool: PoolId, held: Mapping[DeviceId, list[Holding]], pods: Pods, *, is_known: bool) -> Branch:
    """Return a pool that no slice is known of although claims hold devices of it."""
    gone = BranchFlag("pool-gone", "the whole pool is gone: its agent publishes nothing")
    facts = {"driver": pool[0], "pool": pool[1], "generation": None}
    branch = Branch("pool", place_name(*pool), flags=(gone,) if is_known else (), facts=facts)
    branch.children = list(unpublished_devices(pool, set(), held, pods))
    if not is_known:
        branch.children = [replace(child, flags=()) for child in branch.children]
    return branch


def _node_of(pool: PoolId, held: Mapping[DeviceId, list[Holding]], pods: Pods) -> str:
    """Return the node of a pool that is no longer published: that of a pod there, or the one in its name."""
    for claim in (holder.claim for key, holders in held.items() if key[:2] == pool for holder in holders):
        for user in (claim.get("status") or {}).get("reservedFor") or ():
            pod = (pods or {}).get((claim["metadata"].get("namespace"), user["name"])) or {}
            if node := (pod.get("spec") or {}).get("nodeName"):
                return str(node)
    return pool[1].partition("/")[0]


def _equal_nodes(nodes: Mapping[str, list[list[SliceRecord]]], busy: set[PoolId]) -> Iterable[list[str]]:
    """Combine nodes that are drawn alike and whose devices are all free."""
    found: dict[Hashable, list[str]] = {}
    drawn: dict[int, Hashable] = {}
    for name, pools in nodes.items():
        is_apart = len(nodes) <= FEW_NODES or name == _SEVERAL or any(records[0].pool_id in busy for records in pools)
        key: Hashable = name if is_apart else tuple(_drawn_pool(records, name, drawn) for records in pools)
        found.setdefault(key, []).append(name)
    return found.values()


def _drawn_pool(records: Sequence[SliceRecord], node: str, drawn: dict[int, Hashable]) -> Hashable:
    """Return everything that is drawn of a pool except its name; `drawn` caches the part for lists of devices."""
    slices = [
        (one.generation, one.count, repr(one.sets) if one.sets else "", _drawn_devices(one, drawn)) for one in records
    ]
    return records[0].driver, tuple(slices), all(record.spec.get("nodeName") == node for record in records) or node


def _drawn_devices(record: SliceRecord, known: dict[int, Hashable]) -> Hashable:
    wires = record.wires
    if isinstance(wires, Replica) and not wires.shape.varies_in(_DRAWN):
        wires = wires.shape.wires
    look = known.get(id(wires))
    if look is None:
        look = known[id(wires)] = tuple([(w["name"], product_of(w), text_without_attributes(w)) for w in wires])
    return look


def _pool(records: Sequence[SliceRecord], held: Mapping[DeviceId, list[Holding]], pods: Pods) -> Branch:
    newest = max(record.generation for record in records)
    current = [record for record in records if record.generation == newest]
    flags = tuple(_pool_flags(records, current))
    driver, pool = current[0].pool_id
    facts = {"driver": driver, "pool": pool, "generation": newest}
    branch = Branch("pool", place_name(driver, pool), f"generation {newest}", flags=flags, facts=facts)
    devices = [device for record in current for device in record.devices]
    sets = {one["name"]: one for record in current for one in record.sets}
    names = {device.id[2] for device in devices}
    branch.children = [
        *gpu_branches(devices, sets, held, pods),
        *unpublished_devices(current[0].pool_id, names, held, pods),
    ]
    return branch


def _pool_flags(records: Sequence[SliceRecord], current: Sequence[SliceRecord]) -> Iterator[BranchFlag]:
    if len(current) != current[0].count:
        yield BranchFlag("incomplete", f"incomplete: {len(current)} of {current[0].count} slices")
    if len(current) < len(records):
        stale = plural(len(records) - len(current), "slice")
        yield BranchFlag("stale", f"{stale} of older generations")
