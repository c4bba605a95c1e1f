"""Claims as branches: with their devices and pods, below a device or on their own.

In: claims, slices and pods as wire dicts. Out: `Branch`es, with flags for what deserves a reader's attention. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.allocation.capacity import Amount, names_of, parse
from dra_driver.allocation.pools import DeviceId, DeviceRecord, PoolId, counter_value
from dra_driver.allocation.usage import claim_name, taint_text
from dra_driver.base.names import gpu_of_device
from dra_driver.base.wire import ClaimWire, SliceWire, Wire
from dra_driver.tools.fleet.template import (
    Amounts,
    Branch,
    BranchFlag,
    counters_left,
    counters_used,
    fits,
    partitions_left,
)
from dra_driver.tools.world.fleet import DeviceFiles
from dra_driver.tools.world.pod_status import claim_names, container_trouble, has_ended, is_prepared, scheduler_message
from dra_driver.tools.world.profiles import memory_of, memory_text, part_of, string_of

TERMINATING = "Terminating"  # kubectl's word for an object that is being deleted
_UUID_CHARS = 64
Pods = Mapping[tuple[Any, Any], Wire] | None  # by namespace and name; None if the pods are not known


@dataclass(frozen=True, slots=True)
class Holding:
    """One result of an allocated claim."""

    claim: ClaimWire
    result: Wire

    @property
    def is_admin(self) -> bool:
        """Whether the claim only has admin access, so that others can hold the device too."""
        return bool(self.result.get("adminAccess"))


def is_held(holders: Iterable[Holding]) -> bool:
    """Return whether one of the claims that have a device holds it."""
    return any(not holder.is_admin for holder in holders)


def holdings(claims: Sequence[ClaimWire]) -> dict[DeviceId, list[Holding]]:
    """Return which claims hold each device, including those with admin access."""
    held: dict[DeviceId, list[Holding]] = {}
    for claim in claims:
        for result in allocation_results(claim):
            key = (result["driver"], result["pool"], result["device"])
            held.setdefault(key, []).append(Holding(claim, result))
    return held


def claim_tree(
    claims: Sequence[ClaimWire],
    slices: Sequence[SliceWire] | None,
    pods: Sequence[Wire] | None = None,
    *,
    files: DeviceFiles | None = None,
) -> list[Branch]:
    """Return the claims with their devices and pods. `slices` and `pods` are None if they are not known.

    With `files`, what the files of this node contain about a device is a branch below the device.
    """
    published = _published(slices or ())
    tainted = _taint_flags(slices or ())
    known = None if pods is None else {(p["metadata"].get("namespace"), p["metadata"]["name"]): p for p in pods}
    waiting = _waiting_pods(pods or ())
    branches = []
    for claim in sorted(claims, key=claim_name):
        branch = claim_branch(claim, known)
        if not branch.children:
            branch.children = waiting.get((claim["metadata"].get("namespace"), claim["metadata"]["name"]), [])
        held = []
        for result in allocation_results(claim):
            key = (result["driver"], result["pool"], result["device"])
            is_known = slices is None or key in published
            flags = tainted.get(key, ()) if is_known else (BranchFlag("not-published", "not published any more"),)
            held.append(_held_device(claim, result, flags))
        if files is not None:
            _add_files(branch, held, files, claim["metadata"].get("uid") or "")
        branch.children = [*held, *branch.children]
        branches.append(branch)
    return branches


def _waiting_pods(pods: Sequence[Wire]) -> dict[tuple[str | None, str], list[Branch]]:
    """Return the pods without a node, with the scheduler's message, by the namespace and name of their claims."""
    found: dict[tuple[str | None, str], list[Branch]] = {}
    for pod in pods:
        if (pod.get("spec") or {}).get("nodeName") or has_ended(pod):
            continue
        message, metadata = scheduler_message(pod), pod["metadata"]
        branch = Branch("pod", metadata["name"], f"waits: {message}" if message else "waits")
        branch.facts = {"phase": (pod.get("status") or {}).get("phase"), "terminating": False}
        for name in claim_names(pod):
            found.setdefault((metadata.get("namespace"), name), []).append(branch)
    return found


def _published(slices: Sequence[SliceWire]) -> set[DeviceId]:
    return {
        (s["spec"]["driver"], s["spec"]["pool"]["name"], name)
        for s in slices
        for name in names_of(s["spec"].get("devices") or ())
    }


def _held_device(claim: ClaimWire, result: Wire, flags: tuple[BranchFlag, ...]) -> Branch:
    driver, pool, device = result["driver"], result["pool"], result["device"]
    uuid, unwell = _reported_status(claim, result)
    text = f"for {result['request']}{_consumed(result)}{f', {uuid}' if uuid else ''}"
    facts = {"driver": driver, "pool": pool, "device": device, **_result_facts(result)}
    return Branch("device", f"{place_name(driver, pool)}/{device}", text, flags=(*flags, *unwell), facts=facts)


def _add_files(branch: Branch, held: Sequence[Branch], files: DeviceFiles, uid: str) -> None:
    """Add what this node's files contain to the devices of a claim, and what is wrong with the files to the claim."""
    contents, faults = files.of_claim(uid)
    branch.flags = (*branch.flags, *(BranchFlag("metadata-file", fault) for fault in faults))
    for device in held:
        key = tuple(device.facts[name] for name in ("request", "driver", "pool", "device"))
        if one := contents.get(key):
            device.children.append(Branch("file", one.path, str(one)))


def _taint_flags(slices: Sequence[SliceWire]) -> dict[DeviceId, tuple[BranchFlag, ...]]:
    """Return the flags of all devices that have taints: one flag for each taint."""
    return {
        (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], device["name"]): tuple(
            BranchFlag("taint", f"taint {taint_text(taint)}") for taint in device["taints"]
        )
        for slice_ in slices
        for device in slice_["spec"].get("devices") or ()
        if device.get("taints")
    }


def place_name(driver: str, pool: str) -> str:
    """Return the name of a pool with its driver, unless the driver is already a part of the name."""
    return pool if driver in pool.split("/") else f"{driver}/{pool}"


def allocation_results(claim: ClaimWire) -> Sequence[Wire]:
    """Return the results in the status of an allocated claim; none if it has no allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: Sequence[Wire] = (allocation.get("devices") or {}).get("results") or ()
    return results


def claim_branch(claim: ClaimWire, pods: Pods, result: Wire | None = None) -> Branch:
    """Return a claim with its pods; `result` is the allocation result for the device below which it is drawn."""
    status = claim.get("status") or {}
    reserved: Sequence[Wire] = status.get("reservedFor") or ()
    flags = []
    if status.get("allocation") and not reserved:
        flags.append(BranchFlag("unused", "allocated, but no pod uses it"))
    text = "" if status.get("allocation") else "waits for an allocation"
    if result is not None:
        text = "admin access" if result.get("adminAccess") else f"request {result['request']}{_consumed(result)}"
    if claim["metadata"].get("deletionTimestamp"):
        text = f"{text}, {TERMINATING}" if text else TERMINATING
    namespace = claim["metadata"].get("namespace")
    facts = {
        "namespace": namespace,
        "allocated": bool(status.get("allocation")),
        "terminating": bool(claim["metadata"].get("deletionTimestamp")),
        **(_result_facts(result) if result is not None else {}),
    }
    branch = Branch("claim", claim_name(claim), text, flags=tuple(flags), facts=facts)
    for one in reserved:
        pod = None if pods is None else pods.get((namespace, one["name"]))
        text, pod_flags = _pod(one, pod, is_known=pods is not None)
        phase = ((pod or {}).get("status") or {}).get("phase")
        pod_facts = {"phase": phase, "terminating": text == TERMINATING}
        branch.children.append(Branch("pod", one["name"], text, flags=pod_flags, facts=pod_facts))
    return branch


def _reported_status(claim: ClaimWire, result: Wire) -> tuple[str, tuple[BranchFlag, ...]]:
    """Return the UUID that a claim's status has for a device, and a flag if it is not healthy (docs/metadata.md)."""
    keys = ("driver", "pool", "device", "shareID")
    for entry in (claim.get("status") or {}).get("devices") or ():
        if all(entry.get(key) == result.get(key) for key in keys):
            data = entry.get("data")
            uuid = data.get("uuid") if isinstance(data, dict) else None
            ill = [one for one in entry.get("conditions") or () if (one["type"], one["status"]) == ("Healthy", "False")]
            flags = tuple(BranchFlag("unhealthy", f"unhealthy: {one.get('message') or one['reason']}") for one in ill)
            return (uuid if isinstance(uuid, str) and len(uuid) <= _UUID_CHARS else ""), flags
    return "", ()


def _result_facts(result: Wire) -> Wire:
    return {
        "request": result["request"],
        "adminAccess": bool(result.get("adminAccess")),
        "consumedCapacity": result.get("consumedCapacity") or {},
    }


def _pod(reserved: Wire, pod: Wire | None, *, is_known: bool) -> tuple[str, tuple[BranchFlag, ...]]:
    if pod is None or (reserved.get("uid") and pod["metadata"].get("uid") not in {None, reserved["uid"]}):
        return "", (BranchFlag("leaked", "leaked reservation: there is no such pod"),) if is_known else ()
    phase = (pod.get("status") or {}).get("phase") or ""
    if phase in {"Succeeded", "Failed"}:
        return phase, (BranchFlag("leaked", "leaked reservation: the pod has ended"),)
    if pod["metadata"].get("deletionTimestamp"):
        return TERMINATING, ()
    if phase == "Pending" and (pod.get("spec") or {}).get("nodeName") and not is_prepared(pod):
        return phase, (BranchFlag("not-prepared", "its devices are not prepared yet"),)
    trouble = container_trouble(pod)
    return phase, (BranchFlag("not-running", trouble),) if trouble else ()


def _consumed(result: Wire) -> str:
    amounts = result.get("consumedCapacity") or {}
    return "".join(f", {name} {amount}" for name, amount in sorted(amounts.items()))


# The devices of one pool in the tree of a cluster, grouped by GPU, each with the claims that hold it.

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
        "taints": [dict(taint) for taint in device.wire.get("taints") or ()],
    }
    text = f"{product_of(device.wire)}{f', {memory_text(memory)}' if memory else ''}"
    branch = Branch("device", device.id[2], text, flags=flags, facts=facts)
    if device.is_shared and device.capacities:
        branch.fill = _shared(device, holders)
    branch.children = [claim_branch(holder.claim, pods, holder.result) for holder in holders]
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
            branch.children = [claim_branch(holder.claim, pods, holder.result) for holder in holders]
            yield branch
