"""One round of measurements of Intel's GPUs.

In: roots, and the previous round. Out: a reading of each GPU. The kernel drivers count energy, and how long each
graphics part was asleep. Power and use are computed from two rounds, so the first has neither. Use is the share of time
in which the busiest part was not asleep (C6); the share in which its engines worked may be smaller. A quantity that no
file shows has no value.

Source: Linux Documentation/ABI/testing/sysfs-driver-intel-{i915,xe}-hwmon (energy1 of the card, energy2 of the package,
temp2 or pkg, temp3 or vram).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from dra_driver.hardware.drm import DrmFunction, read_functions
from dra_driver.hardware.intel.facts import DRIVERS, INTEL
from dra_driver.hardware.intel.graphics_tiles import GraphicsTile, read_tiles
from dra_driver.hardware.metered import Measure, Reading
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs.hwmon import Sensor, read_sensors, value_of

THROTTLED = "throttled"  # 1 while the clocks of a graphics part are throttled, else 0
_BEFORE = tuple[float, float | None, tuple[int | None, ...]]  # when, energy in mJ, how long each part had slept


class IntelReader:
    """A reader that remembers its previous round; for one thread."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._before: dict[str, _BEFORE] = {}

    def read(self) -> Iterator[Reading]:
        """Yield a reading of each GPU that its kernel driver drives."""
        functions = read_functions(self._roots, INTEL, DRIVERS)
        self._before = {one.address: self._before[one.address] for one in functions if one.address in self._before}
        return (self._read(function) for function in functions)

    def _read(self, function: DrmFunction) -> Reading:
        now = time.monotonic()
        sensors, tiles = read_sensors(function.folder), read_tiles(function)
        energy = _energy_mj(sensors)
        values = _values(sensors, tiles)
        slept = tuple(tile.slept_ms for tile in tiles)
        if energy is not None:
            values[Measure.ENERGY_MJ_TOTAL] = energy
        values |= _since(self._before.get(function.address), (now, energy, slept))
        self._before[function.address] = (now, energy, slept)
        return Reading(function.address, now, values)


def _values(sensors: tuple[Sensor, ...], tiles: tuple[GraphicsTile, ...]) -> dict[str, float]:
    values: dict[str, float] = {}
    package = _temperature(sensors, "pkg", 2)
    if package is None:
        package = _temperature(sensors, "", 1)
    memory = _temperature(sensors, "vram", 3)
    clocks = [tile.clock_mhz for tile in tiles if tile.clock_mhz is not None]
    throttled = [tile.is_throttled for tile in tiles if tile.is_throttled is not None]
    found = {
        Measure.TEMPERATURE_C: None if package is None else package / 1000,
        Measure.MEMORY_TEMPERATURE_C: None if memory is None else memory / 1000,
        Measure.SM_CLOCK_MHZ: max(clocks, default=None),
        THROTTLED: any(throttled) if throttled else None,
    }
    values |= {measure: float(value) for measure, value in found.items() if value is not None}
    return values


def _temperature(sensors: tuple[Sensor, ...], label: str, number: int) -> int | None:
    named = value_of(sensors, "temp", label) if label else None
    if named is not None:
        return named
    return next((one.value for one in sensors if (one.kind, one.number, one.label) == ("temp", number, "")), None)


def _energy_mj(sensors: tuple[Sensor, ...]) -> float | None:
    """Return the energy of the whole card, else that of its package, in mJ."""
    by_number = {one.number: one.value for one in sensors if one.kind == "energy"}
    microjoules = by_number[min(by_number)] if by_number else None
    return None if microjoules is None else microjoules / 1000


def _since(before: _BEFORE | None, now: _BEFORE) -> dict[str, float]:
    """Return the values computed from two rounds; none if a counter went back (the driver was loaded again)."""
    values: dict[str, float] = {}
    seconds = now[0] - before[0] if before else 0.0
    if before is None or seconds <= 0:
        return values
    if before[1] is not None and now[1] is not None and now[1] >= before[1]:
        values[Measure.POWER_W] = round((now[1] - before[1]) / 1000 / seconds, 3)
    pairs = zip(before[2], now[2], strict=False) if len(before[2]) == len(now[2]) else ()
    slept = [new - old for old, new in pairs if old is not None and new is not None and new >= old]
    if slept:
        values[Measure.GPU_PERCENT] = round(100 * (1 - min(1.0, min(slept) / 1000 / seconds)), 1)
    return values
