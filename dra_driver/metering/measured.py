"""Measured: how busy each holder of a device was since the previous reading.

In: readings, holders, processes. Out: for each holder the seconds that were measured, and of these the busy ones. If
the hardware reports no use, nothing is measured: that is not the same as idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.metered import Measure, Reading
from dra_driver.metering.attribution import uses_of
from dra_driver.metering.holders import Holder, Subject

_MAX_POWER_MW = 1e8  # no device draws 100 kW


@dataclass(frozen=True, slots=True)
class HolderReading:
    """The measurements of one holder over the seconds before a reading; None for what was not measured."""

    holder: Holder
    seconds: float
    busy_ratio: float | None
    sm_ratio: float | None
    memory_bytes: float | None
    energy_mj: float | None


class Intervals:
    """The time between the last two readings of each subject. Not thread-safe."""

    def __init__(self, beat_s: float, proc: Path) -> None:
        self._longest_s, self._proc = 3 * beat_s, proc
        self._last: dict[Subject, Reading] = {}

    def of(
        self, readings: tuple[Reading, ...], holders: Mapping[Subject, tuple[Holder, ...]]
    ) -> Iterator[HolderReading]:
        """Yield what was measured since the last call; nothing for a subject whose last reading is too long ago."""
        before, self._last = self._last, {(one.gpu, one.gi_id): one for one in readings}
        for subject, reading in self._last.items():
            last = before.get(subject)
            seconds = reading.at - last.at if last is not None else 0.0
            if last is None or not 0 < seconds <= self._longest_s:
                continue
            held = holders.get(subject, ())
            if len(held) == 1:
                yield _of_only(held[0], reading, last, seconds)
            elif held and reading.processes is not None:
                for holder, use in uses_of(held, reading.processes, self._proc).items():
                    busy = None if use.sm_percent is None else min(1.0, use.sm_percent / 100)
                    yield HolderReading(holder, seconds, busy, None, use.memory_bytes, None)


def _of_only(holder: Holder, reading: Reading, last: Reading, seconds: float) -> HolderReading:
    values = reading.values
    percent = values.get(Measure.GPU_PERCENT)
    busy = values.get(Measure.GRAPHICS_RATIO, None if percent is None else percent / 100)
    energy = None
    if Measure.ENERGY_MJ_TOTAL in values and Measure.ENERGY_MJ_TOTAL in last.values:
        used = values[Measure.ENERGY_MJ_TOTAL] - last.values[Measure.ENERGY_MJ_TOTAL]
        energy = used if 0 <= used <= _MAX_POWER_MW * seconds else None  # None if the counter was reset
    memory = values.get(Measure.MEMORY_USED_BYTES)
    return HolderReading(holder, seconds, busy, values.get(Measure.SM_RATIO), memory, energy)
