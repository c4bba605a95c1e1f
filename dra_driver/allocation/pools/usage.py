"""Usage: how much of a cluster's devices is held, and how much of the rest is fragmented.

In: slices and allocated claims as wire dicts. Out: `Usage`. A unit is a device that uses no counters, or a counter set
(which the partitions of one GPU share), measured by the mean over its counters: half a GPU held is half a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.allocation.pools.devices import DeviceRecord, PoolId, SliceRecord, counter_value
from dra_driver.allocation.pools.held import ClaimHoldings, held_by
from dra_driver.allocation.pools.replicas import shared_wires
from dra_driver.model.wire import ClaimWire, SliceWire, Wire


@dataclass(frozen=True, slots=True)
class Usage:
    """How many of the `devices` are `held`, and what part of the free ones is outside the node with the most of them.

    A GPU that is partitioned or shared counts as one device, of which a part may be held.
    """

    devices: int
    held: float
    free_elsewhere: float

    @property
    def share(self) -> float:
        """The part of the devices that is held, from 0 to 1."""
        return self.held / self.devices if self.devices else 0.0


def usage_of(slices: Sequence[SliceWire], allocated: Sequence[ClaimWire]) -> Usage:
    """Measure a cluster. Only pools with held devices are examined device by device."""
    held = held_by(allocated, shares=True)
    pools: dict[PoolId, list[SliceRecord]] = {}
    for order, wire in enumerate(slices):
        record = SliceRecord(wire, order)
        pools.setdefault(record.pool_id, []).append(record)
    free: dict[str, Fraction] = {}
    units, used = 0, Fraction(0)
    for pool, records in pools.items():
        for node, count, part in _held_parts(records, held) if pool in held.by_pool else _free_parts(records):
            units += count
            used += part
            free[node] = free.get(node, Fraction(0)) + count - part
    total = sum(free.values(), Fraction(0))
    elsewhere = 1 - max(free.values()) / total if total else Fraction(0)
    return Usage(units, float(used), float(elsewhere))


def _free_parts(records: Sequence[SliceRecord]) -> Iterator[tuple[str, int, Fraction]]:
    """Yield the node and the number of units of each slice of a pool with no held devices."""
    sets: dict[str, str] = {}
    for record in records:
        sets.update((one["name"], _node(record)) for one in record.sets)
        alone = len(record.wires)
        if record.consumes:
            alone -= sum(bool(wire.get("consumesCounters")) for wire in shared_wires(record.wires))
        yield _node(record), alone, Fraction(0)
    for node in sets.values():
        yield node, 1, Fraction(0)


def _held_parts(records: Sequence[SliceRecord], held: ClaimHoldings) -> list[tuple[str, int, Fraction]]:
    """Return the node of each unit of a pool, and the part of the unit that is held."""
    parts: list[tuple[str, int, Fraction]] = []
    sets: dict[str, tuple[str, Wire, dict[str, Fraction]]] = {}
    for record in records:
        for one in record.sets:
            sets[one["name"]] = (_node(record), one, {})
    for record in records:
        for device in record.devices:
            is_held = device.id in held.devices or device.id in held.shares
            if not device.counter_amounts:
                parts.append((_node(record), 1, _part(device, held)))
                continue
            for name, counters in device.counter_amounts if is_held else ():
                entry = sets.get(name)
                for counter, amount in counters if entry else ():
                    entry[2][counter] = entry[2].get(counter, Fraction(0)) + Fraction(amount)  # type: ignore[index]
    for node, one, taken in sets.values():
        shares = [
            taken.get(name, Fraction(0)) / Fraction(value)
            for name, wire in (one.get("counters") or {}).items()
            if (value := counter_value(wire))
        ]
        mean = sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)
        parts.append((node, 1, min(mean, Fraction(1))))
    return parts


def _part(device: DeviceRecord, held: ClaimHoldings) -> Fraction:
    """Return the part of a device without counters that is held."""
    if device.id in held.devices:
        return Fraction(1)
    taken = held.capacity.get(device.id)
    if not taken:
        return Fraction(0)
    shares = [Fraction(taken.get(c.name, 0)) / Fraction(c.total) for c in device.capacities if c.total]
    return min(max(shares, default=Fraction(0)), Fraction(1))


def _node(record: SliceRecord) -> str:
    return str(record.spec.get("nodeName") or record.pool_id[1])
