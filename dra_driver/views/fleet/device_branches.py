"""The devices of one pool in the tree of a cluster, grouped by GPU, each with the claims that hold it.

In: the devices of a pool, its counter sets and what claims hold. Out: branches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dra_driver.allocation.pools.capacity import Amount, parse
from dra_driver.allocation.pools.devices import DeviceId, DeviceRecord, PoolId, counter_value
from dra_driver.allocation.pools.taints import taint_text
from dra_driver.model.names import gpu_of_device
from dra_driver.model.wire import Wire
from dra_driver.views.fleet.branch import Branch, BranchFlag
from dra_driver.views.fleet.claim_branches import Holding, Pods, claim_branch, is_held
from dra_driver.views.fleet.counters_left import Amounts, counters_left, counters_used, fits, partitions_left
from dra_driver.views.fleet.device_facts import memory_of, memory_text, part_of, string_of

# The end of the name of a partition that the hardware itself makes; "xcp", "cpx" and the like are the modes of its GPU.
_HARDWARE_PARTITION = re.compile(r"-(?:xcp|[a-z]px)-(?:all|[0-9]+)$")
PRODUCT_ATTRIBUTES = ("productName", "model", "profile", "type")


def gpu_branches(
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
    text = f"{product_of(device.wire)}{f', {memory_text(memory)}' if memory else ''}"
    branch = Branch("device", device.id[2], text, flags=flags, facts=facts)
    if device.is_shared and device.capacities:
        branch.fill = _shared(device, holders)
    branch.children = [claim_branch(one.claim, pods, one.result) for one in holders]
    return branch


def product_of(wire: Wire) -> str:
    """Return what a device is, in the words of its attributes: product, model, profile and type."""
    attributes = wire.get("attributes") or {}
    return " ".join(str(next(iter(attributes[key].values()), "")) for key in PRODUCT_ATTRIBUTES if key in attributes)


def _shared(device: DeviceRecord, holders: Sequence[Holding]) -> float:
    shares = []
    for capacity in device.capacities:
        taken = [parse((one.result.get("consumedCapacity") or {}).get(capacity.name, "0")).value for one in holders]
        if capacity.total:
            shares.append(float(sum(taken) / capacity.total))
    return max(shares, default=0.0)


def unpublished_devices(
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
