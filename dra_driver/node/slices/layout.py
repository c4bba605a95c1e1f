"""Diff: the writes that turn the stored slices into the wanted ones.

In: the wanted slices of one pool, and every stored slice. Out: a `WritePlan`, to be executed in its order: delete,
update, create. Pure. Names of objects have no meaning: a stored slice is recognised by its content, so a restarted
agent (or another one) adopts what it finds. Slices of other drivers or other nodes are ignored.

Generation: if a single slice changes, the pool keeps its generation; a larger change raises it in all slices, so that a
reader can see that the pool is only half written.

Source: the rules of upstream's resourceslice controller; resource.k8s.io/v1 ResourcePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base import errors
from dra_driver.base.errors import ApiError
from dra_driver.base.versions import Since, is_before
from dra_driver.base.wire import DeviceWire, SliceWire, Wire
from dra_driver.kube.paths import RESOURCE_GROUP
from dra_driver.node.slices.compare import DEVICE_FIELDS, differing_fields, taint_key

# Layout: the devices of a pool, divided into slices that the API server accepts.

_CONSUMED_PER_SLICE_1_34 = 1024  # ResourceSliceMaxCounterConsumptions (1.34)


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One slice as it should be, without the generation and the slice count, which belong to the pool."""

    driver: str
    node: str
    pool: str
    devices: tuple[DeviceWire, ...] = ()
    counter_sets: tuple[Wire, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """What the slice contains, named as in `content_keys`."""
        return content_keys(self.devices, self.counter_sets)

    def wire(self, generation: int, count: int) -> Wire:
        """Return the `spec` of the object, without empty lists, which the API server refuses."""
        spec: Wire = {
            "driver": self.driver,
            "nodeName": self.node,
            "pool": {"name": self.pool, "generation": generation, "resourceSliceCount": count},
        }
        if self.devices:
            spec["devices"] = list(self.devices)
        if self.counter_sets:
            spec["sharedCounters"] = list(self.counter_sets)
        return spec


def content_keys(devices: Iterable[DeviceWire], counter_sets: Iterable[Wire]) -> frozenset[str]:
    """Return what a slice contains: devices by name, counter sets as `counters/<name>`."""
    return frozenset([*(d.get("name", "") for d in devices), *(f"counters/{c.get('name', '')}" for c in counter_sets)])


def lay_out(
    devices: Iterable[DeviceWire],
    *,
    pool: str,
    node: str,
    driver: str,
    server_minor: int,
    counter_sets: Iterable[Wire] = (),
    placement: Sequence[Iterable[str]] = (),
) -> tuple[SliceSpec, ...]:
    """Divide a pool into slices.

    `server_minor` 0 means that the version is unknown, and counts as the newest. `placement` holds the `keys` of the
    present slices.

    Shapes: n plain devices -> at least ceil(n / 64) slices; no devices and no counters -> one empty slice.
    Raises: ApiError("api.pool-too-wide") if devices that must share a slice do not fit into one.
    """
    apart = not is_before(server_minor, Since.COUNTERS_APART)
    units = _units_apart(devices, counter_sets) if apart else _units_together(devices, counter_sets)
    kept = _pack(units, placement)
    fresh = _pack(units, ()) if placement else kept
    # After many removals each slice holds only a few devices, and is then merged with others.
    chosen = fresh if len(kept) > 2 * len(fresh) else kept
    specs = [
        SliceSpec(driver, node, pool, tuple(_by_name(slot.devices)), tuple(_by_name(slot.counter_sets)))
        for slot in sorted(chosen, key=lambda slot: (not slot.counters_alone, slot.is_full))
    ]
    return tuple(specs) or (SliceSpec(driver, node, pool),)


@dataclass(slots=True)
class _Unit:
    """Devices and counter sets that must stay in one slice."""

    devices: list[DeviceWire] = field(default_factory=list)
    counter_sets: list[Wire] = field(default_factory=list)
    counters_alone: bool = False
    slice_alone: bool = False

    @property
    def key(self) -> str:
        return min(content_keys(self.devices, self.counter_sets))


@dataclass(slots=True)
class _OpenSlice:
    """A slice that is being filled."""

    devices: list[DeviceWire] = field(default_factory=list)
    counter_sets: list[Wire] = field(default_factory=list)
    counters_alone: bool = False
    is_full: bool = False

    def fits(self, unit: _Unit) -> bool:
        """Return whether the unit fits into the slice beside what it contains already."""
        is_empty = not self.devices and not self.counter_sets
        if not is_empty and (self.counters_alone != unit.counters_alone or self.is_full or unit.slice_alone):
            return False
        devices, counter_sets = [*self.devices, *unit.devices], [*self.counter_sets, *unit.counter_sets]
        if unit.counters_alone:
            return len(counter_sets) <= errors.COUNTER_SETS_PER_SLICE
        if len(devices) > errors.SLICE_DEVICES_ADVANCED:
            return False
        return not counter_sets or (  # only on 1.34 does a slice hold devices and counters together
            sum(len(c.get("counters", ())) for c in counter_sets) <= errors.COUNTERS_PER_SLICE_1_34
            and sum(_consumed(d) for d in devices) <= _CONSUMED_PER_SLICE_1_34
        )

    def add(self, unit: _Unit) -> None:
        """Add the unit."""
        self.counters_alone, self.is_full = unit.counters_alone, unit.slice_alone
        self.devices += unit.devices
        self.counter_sets += unit.counter_sets


def _pack(units: Sequence[_Unit], placement: Sequence[Iterable[str]]) -> list[_OpenSlice]:
    """Put each unit into its present slice if it fits, otherwise into the first one with room or into a new one."""
    present = {key: index for index, keys in enumerate(placement) for key in keys}
    slots = [_OpenSlice() for _ in placement]
    unplaced: list[_Unit] = []
    for unit in units:
        index = present.get(unit.key)
        if index is not None and slots[index].fits(unit):
            slots[index].add(unit)
        else:
            unplaced.append(unit)
    for unit in unplaced:
        slot = next((s for s in slots if s.fits(unit)), None)
        if slot is None:
            slot = _OpenSlice()
            slots.append(slot)
            if not slot.fits(unit):
                raise ApiError(
                    "pool-too-wide",
                    f"{len(unit.devices)} devices beside {unit.key} share counters and do not fit one ResourceSlice",
                )
        slot.add(unit)
    return [slot for slot in slots if slot.devices or slot.counter_sets]


def _units_apart(devices: Iterable[DeviceWire], counter_sets: Iterable[Wire]) -> list[_Unit]:
    """Return the units for 1.35 and newer: counters first, so that their loss shows before any device is sent.

    All devices that consume from one counter set get slices of their own, so a change of one GPU touches one slice.
    """
    units = [_Unit(counter_sets=[c], counters_alone=True) for c in _by_name(counter_sets)]
    counting: dict[str, list[DeviceWire]] = {}
    for device in _by_name(devices):
        if device.get("consumesCounters"):
            counting.setdefault(device["consumesCounters"][0].get("counterSet", ""), []).append(device)
        else:
            units.append(_Unit(devices=[device]))
    maximum = errors.SLICE_DEVICES_ADVANCED
    for group in counting.values():
        units += [_Unit(devices=group[i : i + maximum], slice_alone=True) for i in range(0, len(group), maximum)]
    return units


def _units_together(devices: Iterable[DeviceWire], counter_sets: Iterable[Wire]) -> list[_Unit]:
    """Return the units for 1.34: a device stays with the counter sets that it consumes and their other consumers."""
    of_set = {c.get("name", ""): _Unit(counter_sets=[c]) for c in _by_name(counter_sets)}
    alone: list[_Unit] = []
    for device in _by_name(devices):
        names = [c.get("counterSet", "") for c in device.get("consumesCounters", ())]
        joined = [of_set[name] for name in dict.fromkeys(names) if name in of_set]
        if not joined:
            alone.append(_Unit(devices=[device]))
            continue
        whole = joined[0]
        for other in joined[1:]:
            if other is not whole:
                whole.devices += other.devices
                whole.counter_sets += other.counter_sets
                of_set.update({name: whole for name, unit in of_set.items() if unit is other})
        whole.devices.append(device)
    distinct = {id(unit): unit for unit in of_set.values()}
    return sorted([*distinct.values(), *alone], key=lambda unit: unit.key)


def _consumed(device: DeviceWire) -> int:
    return sum(len(c.get("counters", ())) for c in device.get("consumesCounters", ()))


def _by_name(wires: Iterable[Wire]) -> list[Wire]:
    return sorted(wires, key=lambda wire: wire.get("name", ""))


_GENERATE_NAME_CHARS = 58  # how many characters of generateName the server keeps before it appends five random ones


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Writes in the order in which they are safe.

    `deletes` holds stored objects, the others hold the objects to send.
    """

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
    is the generation at which a pool starts if none of its slices is left.
    """
    first, count = desired[0], len(desired)
    ours = [s for s in stored if is_ours(s, driver=first.driver, node=first.node)]
    pool = sorted((s for s in ours if pool_of(s) == first.pool), key=lambda s: (-generation_of(s), _name(s)))
    current = generation_of(pool[0]) if pool else 0
    pairs, new, surplus = _match(desired, pool)
    changed = [(spec, s) for spec, s in pairs if not _is_current(spec, s, current, count, owner)]
    is_raised = bool(new) or _is_large_change(pairs, changed, surplus, current)
    generation = max(current + 1, least_generation) if is_raised else current
    wires = _Wires(generation, count, owner, _times_added(pool))
    return WritePlan(
        generation,
        deletes=(*(s for s in ours if pool_of(s) != first.pool), *surplus),
        updates=tuple(wires.updated(s, spec) for spec, s in (pairs if is_raised else changed)),
        creates=tuple(wires.created(desired.index(spec), spec) for spec in new),
    )


def _is_large_change(
    pairs: Sequence[tuple[SliceSpec, SliceWire]],
    changed: Sequence[tuple[SliceSpec, SliceWire]],
    surplus: Iterable[SliceWire],
    current: int,
) -> bool:
    """Return whether readers could see the pool half written, so that its generation has to rise."""
    return (
        len(changed) > 1
        or any(generation_of(s) != current for _, s in pairs)
        or (bool(changed) and any(generation_of(s) == current for s in surplus))
    )


@dataclass(frozen=True, slots=True)
class _Wires:
    """The objects to send for one state of the pool: `count` slices of a generation, with times of taints kept."""

    generation: int
    count: int
    owner: Wire | None
    added: Mapping[Any, str]

    def updated(self, stored: SliceWire, spec: SliceSpec) -> SliceWire:
        return _updated(stored, spec.wire(self.generation, self.count), self.owner, self.added)

    def created(self, index: int, spec: SliceSpec) -> SliceWire:
        wire = _with_times(spec.wire(self.generation, self.count), self.added)
        return created(index, spec, wire, self.owner)


def is_ours(stored: SliceWire, *, driver: str, node: str) -> bool:
    """Return whether a slice belongs to this driver on this node; no other slice is ever changed."""
    spec = stored.get("spec") or {}
    return spec.get("driver") == driver and spec.get("nodeName") == node


def generation_of(stored: SliceWire) -> int:
    """Return the pool generation in a slice; 0 if it has none."""
    generation = _pool(stored).get("generation")
    return generation if isinstance(generation, int) else 0


def keys_of(stored: SliceWire) -> frozenset[str]:
    """Return what a stored slice contains, named as in `layout.content_keys`."""
    spec = stored.get("spec") or {}
    return content_keys(spec.get("devices") or (), spec.get("sharedCounters") or ())


def _match(
    desired: Sequence[SliceSpec], pool: Sequence[SliceWire]
) -> tuple[list[tuple[SliceSpec, SliceWire]], list[SliceSpec], list[SliceWire]]:
    """Pair wanted slices with stored ones: equal content first, then the most in common, then the rest.

    Reusing a slice that has nothing in common costs one write, while deleting and creating cost two.
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


def _is_current(spec: SliceSpec, stored: SliceWire, generation: int, count: int, owner: Wire | None) -> bool:
    if owner is not None and not _has_owner(stored, owner):
        return False
    return not differing_fields(spec.wire(generation, count), stored.get("spec") or {})


def _has_owner(stored: SliceWire, owner: Wire) -> bool:
    references = stored.get("metadata", {}).get("ownerReferences") or []
    return any(all(r.get(key) == owner[key] for key in ("kind", "name", "uid")) for r in references)


def _updated(stored: SliceWire, spec: Wire, owner: Wire | None, added: Mapping[Any, str]) -> SliceWire:
    """Return the stored object with our fields replaced and all others unchanged."""
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
    """Return a new object. Schedulers from 1.36 on sort slices by name, so the name begins with the position."""
    metadata: Wire = {"generateName": f"{index:05x}-{spec.driver}-{spec.node}-"[:_GENERATE_NAME_CHARS]}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": RESOURCE_GROUP, "kind": "ResourceSlice", "metadata": metadata, "spec": wire}


def _times_added(pool: Iterable[SliceWire]) -> dict[tuple[str, Any], str]:
    """Return when each taint of each stored device was added; evictions count from that time."""
    return {
        (device.get("name", ""), taint_key(taint)): taint["timeAdded"]
        for stored in reversed(list(pool))  # the newest generation comes first in the pool; read last, its times win
        for device in (stored.get("spec") or {}).get("devices") or []
        for taint in device.get("taints") or []
        if taint.get("timeAdded")
    }


def _with_times(spec: Wire, added: Mapping[Any, str]) -> Wire:
    """Carry `timeAdded` over, since the server would set it to the current time if it were left out."""
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
    """Return the name of the pool in a slice; "" if it has none."""
    return str(_pool(stored).get("name", ""))


def _pool(stored: SliceWire) -> Wire:
    pool = (stored.get("spec") or {}).get("pool")
    return pool if isinstance(pool, dict) else {}


def _name(stored: SliceWire) -> str:
    return str((stored.get("metadata") or {}).get("name", ""))
