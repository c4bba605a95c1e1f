"""Usage: how much of a cluster's devices is held, and how scattered the rest is.

In: slices and allocated claims as wire dicts. Out: `Usage`. A unit is a device that stands alone, or a counter set
(what partitions of one GPU share; the mean over its counters): half a GPU held is half a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.allocation.devices import DeviceRecord, SliceRecord, counter_value
from dra_driver.allocation.held import Held, held_by
from dra_driver.model.wire import ClaimWire, SliceWire, Wire


@dataclass(frozen=True, slots=True)
class Usage:
    """`units` in all, `used` of them; `scattered` is the part of what is free that lies outside the freest node."""

    units: int
    used: float
    scattered: float

    @property
    def share(self) -> float:
        """The part that is used, 0 to 1."""
        return self.used / self.units if self.units else 0.0


def usage_of(slices: Sequence[SliceWire], allocated: Sequence[ClaimWire]) -> Usage:
    """Measure a cluster."""
    held = held_by(allocated, shares=True)
    free: dict[str, Fraction] = {}
    units, used = 0, Fraction(0)
    for node, part in _parts([SliceRecord(wire, order) for order, wire in enumerate(slices)], held):
        units += 1
        used += part
        free[node] = free.get(node, Fraction(0)) + 1 - part
    total = sum(free.values(), Fraction(0))
    scattered = 1 - max(free.values()) / total if total else Fraction(0)
    return Usage(units, float(used), float(scattered))


def _parts(records: Sequence[SliceRecord], held: Held) -> list[tuple[str, Fraction]]:
    """Give, for each unit, its node and the part of it that is held."""
    parts: list[tuple[str, Fraction]] = []
    sets: dict[tuple[str, str, str], tuple[str, Wire, dict[str, Fraction]]] = {}
    for record in records:
        for one in record.sets:
            sets[(*record.pool_id, one["name"])] = (_node(record), one, {})
    for record in records:
        for device in record.devices:
            is_held = device.id in held.devices or device.id in held.shares
            if not device.takes:
                parts.append((_node(record), _part(device, held)))
                continue
            for name, counters in device.takes if is_held else ():
                entry = sets.get((*record.pool_id, name))
                for counter, amount in counters if entry else ():
                    entry[2][counter] = entry[2].get(counter, Fraction(0)) + Fraction(amount)  # type: ignore[index]
    for node, one, taken in sets.values():
        shares = [
            taken.get(name, Fraction(0)) / Fraction(value)
            for name, wire in (one.get("counters") or {}).items()
            if (value := counter_value(wire))
        ]
        mean = sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)
        parts.append((node, min(mean, Fraction(1))))
    return parts


def _part(device: DeviceRecord, held: Held) -> Fraction:
    """Give the part of a device that stands alone which is held."""
    if device.id in held.devices:
        return Fraction(1)
    taken = held.capacity.get(device.id)
    if not taken:
        return Fraction(0)
    shares = [Fraction(taken.get(c.name, 0)) / Fraction(c.total) for c in device.capacities if c.total]
    return min(max(shares, default=Fraction(0)), Fraction(1))


def _node(record: SliceRecord) -> str:
    return str(record.spec.get("nodeName") or record.pool_id[1])
