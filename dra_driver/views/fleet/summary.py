"""The fleet in figures: devices and free devices of each node, and devices held by each namespace and class.

In: the branches of `slice_tree`, and claims as wire dicts. Out: rows. Nodes with equal figures share a row. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dra_driver.model.shares import DeviceType
from dra_driver.model.wire import ClaimWire, Wire
from dra_driver.views.fleet.branch import Branch, has_flags
from dra_driver.views.fleet.claim_branches import allocation_results
from dra_driver.views.wording import plural

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
    below = [(one, pool) for pool in node.children for one in pool.children]
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
        sum(one.facts.get("state") == "held" for gpu, _ in below for one in _devices(gpu)),
        len(gpus) - sum(not any(map(_is_broken, _devices(gpu))) for gpu in sound),
        tuple(sorted(Counter(filter(None, (_product(gpu) for gpu, _ in gpus))).items())),
        len(below) - len(gpus),
    )


def _is_broken(branch: Branch) -> bool:
    return any(flag.code in _SICK_FLAGS for flag in branch.flags)


def _is_gpu(branch: Branch, driver: str) -> bool:
    """Return whether devices are those of a GPU, by their type or by a driver's name such as gpu.example.com."""
    types = {one.facts.get("type") for one in _devices(branch)}
    return bool(types & _GPU_TYPES) or driver.partition(".")[0] == "gpu"


def _is_whole(device: Branch) -> bool:
    return not device.facts.get("profile") and not str(device.facts.get("type") or "").endswith("-share")


def _product(gpu: Branch) -> str:
    return next((str(one.facts["product"]) for one in _devices(gpu) if one.facts.get("product")), "")


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
        (str(one["metadata"].get("namespace") or "default"), one, len(_held_results(one))) for one in claims
    )


def class_rows(claims: Iterable[ClaimWire]) -> list[HolderRow]:
    """Return what requests of each DeviceClass hold; a claim counts for each class that it asks for."""

    def pairs() -> Iterator[tuple[str, ClaimWire, int]]:
        for claim in claims:
            classes = _classes(claim)
            by_class = Counter(classes.get(str(one["request"]), "?") for one in _held_results(claim))
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
    return [one for one in allocation_results(claim) if not one.get("adminAccess")]


def _classes(claim: ClaimWire) -> dict[str, str]:
    """Return the class of each request, by the request's name in allocation results."""
    found: dict[str, str] = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        if exactly := request.get("exactly"):
            found[request["name"]] = str(exactly.get("deviceClassName") or "?")
        for one in request.get("firstAvailable") or ():
            found[f"{request['name']}/{one['name']}"] = str(one.get("deviceClassName") or "?")
    return found


def folded_tree(branches: Iterable[Branch]) -> list[Branch]:
    """Return the tree without devices that are free or blocked by held ones; a GPU shows how many are free instead."""
    return [_folded(branch) for branch in branches]


def _folded(branch: Branch) -> Branch:
    if branch.kind == "pool":
        return replace(branch, children=list(_equal_ones([_folded(one) for one in branch.children])))
    if branch.kind == "set":
        kept = [one for one in branch.children if one.children or has_flags([one])]
        free = [one for one in branch.children if one.facts.get("state") == "free"]
        parts = plural(sum(not _is_whole(one) for one in free), "placement")
        words = f"free: whole, or {parts}" if any(map(_is_whole, free)) else f"{parts} free"
        text = f"{words}, {branch.text}" if branch.text and branch.text != "partitions" else words
        return replace(branch, children=kept, text=text)
    return replace(branch, children=[_folded(one) for one in branch.children])


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
