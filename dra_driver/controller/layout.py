"""Layout: the devices of a pool, divided into slices that the API server accepts.

In: devices and counter sets in wire form, and their present placement. Out: `SliceSpec`s. Pure. What a slice contains
stays in it while it fits, so that a device that is added, removed or changed affects one slice. Without a placement the
order of names decides, so that the same devices always make the same slices. Devices without counters, such as existing
partitions, come before those that are made on demand: schedulers from 1.36 on take slices in this order. No slice has
more devices than the API server would accept if one of them were tainted, so that a new taint takes one write and moves
no device.

Source: Kubernetes API resource/v1 ResourceSliceSpec and its limits; 1.34 requires counters in the slice of the devices
that consume them, 1.35 and newer require them in slices without devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dra_driver.model import limits
from dra_driver.model.errors import ApiError
from dra_driver.model.kubernetes import Since, is_before
from dra_driver.model.wire import DeviceWire, Wire

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
            return len(counter_sets) <= limits.COUNTER_SETS_PER_SLICE
        if len(devices) > limits.SLICE_DEVICES_ADVANCED:
            return False
        return not counter_sets or (  # only on 1.34 does a slice hold devices and counters together
            sum(len(c.get("counters", ())) for c in counter_sets) <= limits.COUNTERS_PER_SLICE_1_34
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
    maximum = limits.SLICE_DEVICES_ADVANCED
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
