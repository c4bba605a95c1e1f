"""A cluster as a tree: node, pool, GPU, device, claim, pod.

In: slices, claims and pods as wire dicts. Out: `Branch`es with a line of text, the fraction that is held (0 to 1) for
GPUs and shared devices, and flags for what deserves a reader's attention. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from dra_driver.allocation.explaining.node_kinds import FEW_NODES
from dra_driver.allocation.pools.devices import DeviceId, PoolId, SliceRecord
from dra_driver.allocation.pools.replicas import Replica, text_without_attributes
from dra_driver.model.wire import ClaimWire, SliceWire, Wire
from dra_driver.selectors.readset import Read
from dra_driver.views.fleet.branch import Branch, BranchFlag
from dra_driver.views.fleet.claim_branches import Holding, Pods, holdings, place_name
from dra_driver.views.fleet.device_branches import PRODUCT_ATTRIBUTES, gpu_branches, product_of, unpublished_devices
from dra_driver.views.wording import plural

_SEVERAL = "(several nodes)"
_DRAWN = tuple(Read("attributes", None, name) for name in PRODUCT_ATTRIBUTES)


def slice_tree(
    slices: Sequence[SliceWire], claims: Sequence[ClaimWire], pods: Sequence[Wire] | None = None
) -> list[Branch]:
    """Return the nodes with their pools, devices, claims and pods. `pods` is None if they are not known."""
    held = holdings(claims)
    known = None if pods is None else {(p["metadata"].get("namespace"), p["metadata"]["name"]): p for p in pods}
    pools: dict[PoolId, list[SliceRecord]] = {}
    for order, wire in enumerate(slices):
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
    return [*branches, *_unpublished_pools(pools.keys(), held, known)]


def _unpublished_pools(
    published: Collection[PoolId], held: Mapping[DeviceId, list[Holding]], pods: Pods
) -> list[Branch]:
    """Return the pools that are no longer published although claims hold devices of them."""
    branches = []
    for pool in dict.fromkeys(key[:2] for key in held if key[:2] not in published):
        gone = BranchFlag("pool-gone", "the whole pool is gone: its agent publishes nothing")
        facts = {"driver": pool[0], "pool": pool[1], "generation": None}
        child = Branch("pool", place_name(*pool), flags=(gone,), facts=facts)
        child.children = list(unpublished_devices(pool, set(), held, pods))
        branches.append(Branch("node", _node_of(pool, held, pods), children=[child]))
    return branches


def _node_of(pool: PoolId, held: Mapping[DeviceId, list[Holding]], pods: Pods) -> str:
    """Return the node of a pool that is no longer published: that of a pod there, or the one in its name."""
    for claim in (one.claim for key, holders in held.items() if key[:2] == pool for one in holders):
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
    return records[0].driver, tuple(slices), all(one.spec.get("nodeName") == node for one in records) or node


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
