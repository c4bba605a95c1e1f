"""Sensors of a PCI function, from its hwmon folders.

In: a function's folder. Out: numbers in the kernel's units; None for one that is absent, can't be read or is no number.
Source: Linux Documentation/hwmon/sysfs-interface (thousandths of a degree and of a volt, microwatts, microjoules,
hertz).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import entries_of, read_text

_NUMBER = re.compile(r"-?\d{1,19}")
_CHANNEL = re.compile(r"(temp|power|energy|freq|in|fan)(\d{1,2})_(?:input|average)")
_SIGNED = ("temp", "in")
_HOTTEST = 200_000  # thousandths of a degree; the firmware has not set a limit that reads higher


@dataclass(frozen=True, slots=True)
class Sensor:
    """One channel: `kind` and `number` as in `temp2`, its label ("junction"; "" for none), its value and limit."""

    kind: str
    number: int
    label: str
    value: int
    critical: int | None = None


def read_sensors(function: Path) -> tuple[Sensor, ...]:
    """Return the channels that have a value, in the order of their folders and names."""
    folder = function / "hwmon"
    return tuple(sensor for name in entries_of(folder) for sensor in _of_folder(folder / name))


def _of_folder(folder: Path) -> Iterator[Sensor]:
    seen = set()
    for name in sorted(entries_of(folder), reverse=True):  # power1_input, the current value, before power1_average
        found = _CHANNEL.fullmatch(name)
        channel = found[1] + found[2] if found else ""
        value = read_number(folder / name) if found and channel not in seen else None
        if found and value is not None and (value >= 0 or found[1] in _SIGNED):
            seen.add(channel)
            label = (read_text(folder / f"{channel}_label") or "")[:64]
            critical = read_number(folder / f"{channel}_crit") if found[1] == "temp" else None
            is_set = critical is not None and 0 < critical < _HOTTEST
            yield Sensor(found[1], int(found[2]), label, value, critical if is_set else None)


def value_of(sensors: tuple[Sensor, ...], kind: str, *labels: str) -> int | None:
    """Return the value of the first channel of a kind with one of these labels, or None."""
    found = {sensor.label.lower(): sensor.value for sensor in reversed(sensors) if sensor.kind == kind}
    return next((found[label] for label in labels if label in found), None)


def average_power(function: Path) -> int | None:
    """Return the power drawn on average in microwatts, None where no sensor averages it."""
    folder = function / "hwmon"
    found = (read_number(folder / name / "power1_average") for name in entries_of(folder))
    return next((number for number in found if number is not None and number >= 0), None)


def margins(sensors: tuple[Sensor, ...]) -> tuple[int, ...]:
    """Return by how many degrees Celsius each temperature that has a critical limit is below it."""
    return tuple((one.critical - one.value) // 1000 for one in sensors if one.critical is not None)


def read_number(path: Path) -> int | None:
    """Return the decimal number in a file, or None."""
    text = read_text(path) or ""
    return int(text) if text.isascii() and _NUMBER.fullmatch(text) else None
