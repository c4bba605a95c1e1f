"""A node as the map draws it: its devices as tiles, and the parts of each GPU to scale.

In: the slices of a node, and which claims hold which devices. Out: `Tile`s. A MIG partition is drawn where its memory
slices lie in the GPU; the replicas of a shared GPU are drawn as equal parts. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.allocation.pools.devices import DeviceId, DeviceRecord, PoolId, SliceRecord
from dra_driver.allocation.pools.held import claim_name
from dra_driver.allocation.pools.taints import taint_text
from dra_driver.model.names import gpu_of_device
from dra_driver.model.taints import TaintEffect
from dra_driver.model.wire import DeviceWire, Wire
from dra_driver.views.fleet.claim_branches import Holding, is_held
from dra_driver.views.fleet.counters_left import counters_left, counters_used, fits
from dra_driver.views.fleet.device_facts import attribute_of, memory_of, memory_text, profile_of, string_of

FREE, HELD, TAINTED, WITHHELD = "free", "held", "tainted", "withheld"
_WORST = (TAINTED, WITHHELD, HELD, FREE)
_SLICE = re.compile(r"memory(?:Slice|-slice-)(\d+)")  # the name as a capacity, or as a counter
# MIG divides the memory of a GPU into 8 slices, of an A30 into 4. Source: NVIDIA MIG User Guide, supported profiles.
_SLICES, _SLICES_OF_A30 = 8, 4
_WHOLE = (0.0, 1.0)
Held = Mapping[DeviceId, Sequence[Holding]]  # the holdings of the devices of one pool


@dataclass(frozen=True, slots=True)
class TilePart:
    """A part of a tile: a device, or room in which devices could be made.

    `start` and `size` are fractions of the tile, from 0 to 1. `device` is "" for room.
    """

    device: str
    label: str
    start: float
    size: float
    state: str
    holders: tuple[str, ...] = ()
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
            part = TilePart(key[2], "not published", *_WHOLE, WITHHELD, _names(holders))
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
    return TilePart(device.id[2], label, *place, state, _names(holders), taints)


def _is_tainted(wire: DeviceWire) -> bool:
    """Return whether a device has a taint that keeps pods away; a taint with the effect None only informs."""
    return any(one.get("effect") != TaintEffect.NONE for one in wire.get("taints") or ())


def _is_held(device: DeviceRecord, held: Held) -> bool:
    return is_held(held.get(device.id, ()))


def _names(holders: Sequence[Holding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim_name(one.claim) for one in holders))
