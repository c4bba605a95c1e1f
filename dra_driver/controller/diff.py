"""Diff: which writes bring the stored slices to the wanted ones.

In: the wanted slices of one pool, and every stored slice. Out: a `WritePlan`, to be run in its order: delete, update,
create. Pure. Names of objects mean nothing: a stored slice is recognised by what lies in it, so a restarted agent (or
another one) adopts what it finds. Slices of other drivers or other nodes are not looked at.

Generation: a single changed slice keeps the pool's; anything more raises it in all slices, so that a reader who sees
the pool half written knows.

Source: the rules of upstream's resourceslice controller; resource.k8s.io/v1 ResourcePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.controller.compare import DEVICE_FIELDS, differing_fields, taint_key
from dra_driver.controller.layout import SliceSpec, content_keys
from dra_driver.kube.paths import RESOURCE_GROUP
from dra_driver.model.wire import DeviceWire, SliceWire, Wire

_GENERATE_NAME_CHARS = 58  # what the server keeps of generateName before its five random characters


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Writes in the order in which they are safe. `deletes` holds the stored objects, the others what to send."""

    generation: int
    deletes: tuple[SliceWire, ...] = ()
    updates: tuple[SliceWire, ...] = ()
    creates: tuple[SliceWire, ...] = ()

    def __len__(self) -> int:
        return len(self.deletes) + len(self.updates) + len(self.creates)


def plan_writes(
    desired: Sequence[SliceSpec],
    stored: Iterable[SliceWire],
    *,
    owner: Wire | None = None,
    least_generation: int = 1,
) -> WritePlan:
    """Plan the writes for one pool, and the removal of our slices on this node that belong to no wanted pool.

    `desired` has at least one slice. `owner` is the ownerReference that each slice should carry. `least_generation`
    is what a pool of which nothing is left starts with.
    """
    first = desired[0]
    ours = [s for s in stored if is_ours(s, driver=first.driver, node=first.node)]
    stale = [s for s in ours if pool_of(s) != first.pool]
    pool = sorted((s for s in ours if pool_of(s) == first.pool), key=lambda s: (-generation_of(s), _name(s)))
    current = generation_of(pool[0]) if pool else 0
    pairs, new, surplus = _match(desired, pool)
    added = _times_added(pool)
    count = len(desired)

    changed = [(spec, s) for spec, s in pairs if not _is_right(spec, s, current, count, owner)]
    is_raised = bool(
        new
        or len(changed) > 1
        or any(generation_of(s) != current for _, s in pairs)
        or (changed and any(generation_of(s) == current for s in surplus))
    )
    generation = max(current + 1, least_generation) if is_raised else current
    to_update = pairs if is_raised else changed
    return WritePlan(
        generation,
        deletes=(*stale, *surplus),
        updates=tuple(_updated(s, spec.wire(generation, count), owner, added) for spec, s in to_update),
        creates=tuple(
            created(desired.index(spec), spec, _with_times(spec.wire(generation, count), added), owner) for spec in new
        ),
    )


def is_ours(stored: SliceWire, *, driver: str, node: str) -> bool:
    """Return whether a slice is one of this driver on this node: no other is ever touched."""
    spec = stored.get("spec") or {}
    return spec.get("driver") == driver and spec.get("nodeName") == node


def generation_of(stored: SliceWire) -> int:
    """Return the pool generation that a slice says it belongs to."""
    generation = _pool(stored).get("generation")
    return generation if isinstance(generation, int) else 0


def keys_of(stored: SliceWire) -> frozenset[str]:
    """Name what lies in a stored slice, as `layout.content_keys` does."""
    spec = stored.get("spec") or {}
    return content_keys(spec.get("devices") or (), spec.get("sharedCounters") or ())


def _match(
    desired: Sequence[SliceSpec], pool: Sequence[SliceWire]
) -> tuple[list[tuple[SliceSpec, SliceWire]], list[SliceSpec], list[SliceWire]]:
    """Pair wanted with stored slices: same content first, then most in common, then whatever is left.

    Re-using a slice that has nothing in common costs one write where deleting and creating cost two.
    """
    keys = [keys_of(s) for s in pool]
    free = list(range(len(pool)))
    found: dict[int, int] = {}
    for index, spec in enumerate(desired):
        exact = next((i for i in free if keys[i] == spec.keys), None)
        if exact is not None:
            found[index] = exact
            free.remove(exact)
    for index, spec in enumerate(desired):
        if index not in found and free:
            best = max(free, key=lambda i: (len(keys[i] & spec.keys), -i))
            if keys[best] & spec.keys:
                found[index] = best
                free.remove(best)
    for index in range(len(desired)):
        if index not in found and free:
            found[index] = free.pop(0)
    pairs = [(spec, pool[found[i]]) for i, spec in enumerate(desired) if i in found]
    return pairs, [spec for i, spec in enumerate(desired) if i not in found], [pool[i] for i in free]


def _is_right(spec: SliceSpec, stored: SliceWire, generation: int, count: int, owner: Wire | None) -> bool:
    if owner is not None and not _has_owner(stored, owner):
        return False
    return not differing_fields(spec.wire(generation, count), stored.get("spec") or {})


def _has_owner(stored: SliceWire, owner: Wire) -> bool:
    references = stored.get("metadata", {}).get("ownerReferences") or []
    return any(all(r.get(key) == owner[key] for key in ("kind", "name", "uid")) for r in references)


def _updated(stored: SliceWire, spec: Wire, owner: Wire | None, added: Mapping[Any, str]) -> SliceWire:
    """Return the stored object with our fields replaced, and all others as they are."""
    old = stored.get("spec") or {}
    kept = {key: value for key, value in old.items() if key not in ("devices", "sharedCounters")}
    merged = {**kept, **_with_times(spec, added)}
    merged["pool"] = {**(old.get("pool") or {}), **spec["pool"]}
    foreign = {d.get("name"): d for d in old.get("devices") or []}
    if "devices" in merged:
        merged["devices"] = [_merged_device(d, foreign.get(d["name"])) for d in merged["devices"]]
    metadata = dict(stored.get("metadata") or {})
    if owner is not None and not _has_owner(stored, owner):
        others = [r for r in metadata.get("ownerReferences") or [] if r.get("kind") != owner["kind"]]
        metadata["ownerReferences"] = [*others, owner]
    return {**stored, "metadata": metadata, "spec": merged}


def _merged_device(wanted: DeviceWire, stored: DeviceWire | None) -> DeviceWire:
    foreign = {key: value for key, value in (stored or {}).items() if key not in DEVICE_FIELDS}
    return {**foreign, **wanted} if foreign else wanted


def created(index: int, spec: SliceSpec, wire: Wire, owner: Wire | None) -> SliceWire:
    """Return a new object. The scheduler (1.36 and newer) sorts slices by name, so the name begins with the order."""
    metadata: Wire = {"generateName": f"{index:05x}-{spec.driver}-{spec.node}-"[:_GENERATE_NAME_CHARS]}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": RESOURCE_GROUP, "kind": "ResourceSlice", "metadata": metadata, "spec": wire}


def _times_added(pool: Iterable[SliceWire]) -> dict[tuple[str, Any], str]:
    """Collect when each taint of each stored device was added; an eviction counts from there."""
    return {
        (device.get("name", ""), taint_key(taint)): taint["timeAdded"]
        for stored in reversed(list(pool))  # of several, the newest generation's
        for device in (stored.get("spec") or {}).get("devices") or []
        for taint in device.get("taints") or []
        if taint.get("timeAdded")
    }


def _with_times(spec: Wire, added: Mapping[Any, str]) -> Wire:
    """Carry `timeAdded` over: the server sets it to now wherever it is left open."""
    if not added or "devices" not in spec:
        return spec
    return {**spec, "devices": [_timed(device, added) for device in spec["devices"]]}


def _timed(device: DeviceWire, added: Mapping[Any, str]) -> DeviceWire:
    if not device.get("taints"):
        return device
    return {**device, "taints": [_timed_taint(device["name"], taint, added) for taint in device["taints"]]}


def _timed_taint(device: str, taint: Wire, added: Mapping[Any, str]) -> Wire:
    known = added.get((device, taint_key(taint)))
    return taint if known is None or taint.get("timeAdded") else {**taint, "timeAdded": known}


def pool_of(stored: SliceWire) -> str:
    """Return the name of the pool that a slice says it belongs to."""
    return str(_pool(stored).get("name", ""))


def _pool(stored: SliceWire) -> Wire:
    pool = (stored.get("spec") or {}).get("pool")
    return pool if isinstance(pool, dict) else {}


def _name(stored: SliceWire) -> str:
    return str((stored.get("metadata") or {}).get("name", ""))
