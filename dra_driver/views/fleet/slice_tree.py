"""A cluster as a tree: node, pool, GPU, device, claim, pod.

In: slices, claims and pods as wire dicts. Out: `Branch`es with a line of text, the fraction that is held (0 to 1) for
GPUs and shared devices, and flags for what deserves a reader's attention. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from dra_driver.allocation.explaining.node_kinds import FEW_NODES
from dra_driver.allocation.pools.capacity import Amount, parse
from dra_driver.allocation.pools.devices import DeviceId, DeviceRecord, PoolId, SliceRecord, counter_value
from dra_driver.allocation.pools.replicas import Replica, text_without_attributes
from dra_driver.allocation.pools.taints import taint_text
from dra_driver.model.names import gpu_of_device
from dra_driver.model.wire import ClaimWire, SliceWire, Wire
from dra_driver.selectors.readset import Read
from dra_driver.views.fleet.branch import Branch, BranchFlag
from dra_driver.views.fleet.claim_branches import Holding, Pods, claim_branch, holdings, is_held, place_name
from dra_driver.views.fleet.counters_left import Amounts, counters_left, counters_used, fits, partitions_left
from dra_driver.views.fleet.device_facts import memory_of, memory_text, part_of, string_of
from dra_driver.views.wording import plural

# The end of the name of a partition that the hardware itself makes; "xcp", "cpx" and the like are the modes of its GPU.
_HARDWARE_PARTITION = re.compile(r"-(?:xcp|[a-z]px)-(?:all|[0-9]+)$")
_SEVERAL = "(several nodes)"
_PRODUCT = ("productName", "model", "profile", "type")
_DRAWN = tuple(Read("attributes", None, name) for name in _PRODUCT)


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
        child.children = list(_unpublished_devices(pool, set(), held, pods))
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
        look = known[id(wires)] = tuple([(w["name"], _product(w), text_without_attributes(w)) for w in wires])
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
        *_gpus_of(devices, sets, held, pods),
        *_unpublished_devices(current[0].pool_id, names, held, pods),
    ]
    return branch


def _gpus_of(
    devices: Sequence[DeviceRecord], sets: Mapping[str, Wire], held: Mapping[DeviceId, list[Holding]], pods: Pods
) -> list[Branch]:
    """Return the devices by the counter set that they share, then all others by GPU."""
    members: dict[str, list[DeviceRecord]] = {name: [] for name in sets}
    alone: list[DeviceRecord] = []
    for device in devices:
        first = device.counter_amounts[0][0] if device.counter_amounts else ""
        members.get(first, alone).append(device)
    used = counters_used(one for one in devices if is_held(held.get(one.id, ())))
    left = counters_left(sets.values(), used)
    found = []
    for name, one in sets.items():
        group = Branch("set", _gpu_of(members[name], name), *_counters(one, used))
        group.children = [_device(device, held, pods, left) for device in members[name]]
        group.facts = {"counterSet": name, "freePartitions": partitions_left(_free(members[name], held), left)}
        found.append(group)
    return found + _by_gpu([_device(device, held, pods) for device in alone])


def _pool_flags(records: Sequence[SliceRecord], current: Sequence[SliceRecord]) -> Iterator[BranchFlag]:
    if len(current) != current[0].count:
        yield BranchFlag("incomplete", f"incomplete: {len(current)} of {current[0].count} slices")
    if len(current) < len(records):
        stale = plural(len(records) - len(current), "slice")
        yield BranchFlag("stale", f"{stale} of older generations")


def _gpu_of(devices: Sequence[DeviceRecord], counter_set: str) -> str:
    """Return the GPU of the devices that consume a counter set; the set's own name if no device does."""
    return _gpu_name(devices[0].id[2]) if devices else counter_set


def _gpu_name(device: str) -> str:
    """Return the name of the GPU that a partition or a replica belongs to; any other name as it is."""
    gpu = gpu_of_device(device)
    return gpu if gpu != device else _HARDWARE_PARTITION.sub("", device)


def _by_gpu(devices: Sequence[Branch]) -> list[Branch]:
    """Group the existing partitions and the replicas of one GPU, whose names begin with that of the GPU."""
    found: list[Branch] = []
    gpus: dict[str, Branch] = {}
    for device in devices:
        gpu = _gpu_name(device.name)
        if gpu == device.name:
            found.append(device)
            continue
        if gpu not in gpus:
            gpus[gpu] = Branch("set", gpu, "partitions")
            found.append(gpus[gpu])
        gpus[gpu].children.append(device)
    for one in gpus.values():
        one.fill = sum(bool(part.children) for part in one.children) / len(one.children)
        free = [str(part.facts["profile"] or "replica") for part in one.children if part.facts["state"] == "free"]
        one.facts = {"counterSet": None, "freePartitions": dict(Counter(free))}
    return found


def _counters(one: Wire, used: Mapping[tuple[str, str], Amount]) -> tuple[str, float]:
    shares, words = [], []
    for name, counter in (one.get("counters") or {}).items():
        limit, taken = counter_value(counter), used.get((one["name"], name), 0)
        if limit:
            shares.append(float(taken / limit))
        if taken and name in {"memory", "multiprocessors"}:
            total = str(counter.get("value", 0))
            total = memory_text(total) if name == "memory" else total
            words.append(f"{float(taken / limit) if limit else 0:.0%} of {total} {name} held")
    return ", ".join(words), sum(shares) / len(shares) if shares else 0.0


def _free(devices: Iterable[DeviceRecord], held: Mapping[DeviceId, list[Holding]]) -> Iterator[DeviceRecord]:
    """Yield the partitions that no claim has and no taint keeps from new ones."""
    return (one for one in devices if one.id not in held and part_of(one.wire) and not one.wire.get("taints"))


def _device(
    device: DeviceRecord, held: Mapping[DeviceId, list[Holding]], pods: Pods, left: Amounts | None = None
) -> Branch:
    flags = tuple(BranchFlag("taint", f"taint {taint_text(taint)}") for taint in device.wire.get("taints") or ())
    holders = held.get(device.id, [])
    is_in_use = is_held(holders)
    is_free = not is_in_use and not flags and (left is None or fits(device, left))
    memory = memory_of(device.wire)
    facts = {
        "type": string_of(device.wire, "type"),
        "product": string_of(device.wire, "productName") or string_of(device.wire, "model"),
        "profile": part_of(device.wire) or None,
        "memory": memory,
        "state": "held" if is_in_use else "free" if is_free else "tainted" if flags else "blocked",
        "taints": [dict(one) for one in device.wire.get("taints") or ()],
    }
    text = f"{_product(device.wire)}{f', {memory_text(memory)}' if memory else ''}"
    branch = Branch("device", device.id[2], text, flags=flags, facts=facts)
    if device.is_shared and device.capacities:
        branch.fill = _shared(device, holders)
    branch.children = [claim_branch(one.claim, pods, one.result) for one in holders]
    return branch


def _product(wire: Wire) -> str:
    attributes = wire.get("attributes") or {}
    return " ".join(str(next(iter(attributes[key].values()), "")) for key in _PRODUCT if key in attributes)


def _shared(device: DeviceRecord, holders: Sequence[Holding]) -> float:
    shares = []
    for capacity in device.capacities:
        taken = [parse((one.result.get("consumedCapacity") or {}).get(capacity.name, "0")).value for one in holders]
        if capacity.total:
            shares.append(float(sum(taken) / capacity.total))
    return max(shares, default=0.0)


def _unpublished_devices(
    pool: PoolId, names: set[str], held: Mapping[DeviceId, list[Holding]], pods: Pods
) -> Iterator[Branch]:
    """Yield the devices that claims hold although they are not published."""
    for key, holders in held.items():
        if key[:2] == pool and key[2] not in names:
            flags = (BranchFlag("not-published", "held, but not published"),)
            unknown = dict.fromkeys(("type", "product", "profile", "memory"))
            branch = Branch("device", key[2], flags=flags, facts={**unknown, "state": "held", "taints": []})
            branch.children = [claim_branch(one.claim, pods, one.result) for one in holders]
            yield branch
