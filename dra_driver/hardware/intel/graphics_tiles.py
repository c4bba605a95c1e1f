"""The graphics parts (GTs) of an Intel GPU: their clocks, whether these are throttled, and the time spent asleep.

In: a function. Out: values per GT. xe has them below `tile<N>/gt<M>`, i915 below the card's `gt/gt<M>`.

Source: Linux Documentation/ABI/testing/sysfs-driver-intel-xe (freq0, gtidle, throttle), i915's gt/sysfs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.drm import DrmFunction
from dra_driver.hardware.pci import entries_of, read_text
from dra_driver.hardware.sysfs.hwmon import read_number

_TILE, _GT = re.compile(r"tile\d{1,2}"), re.compile(r"gt\d{1,2}")


@dataclass(frozen=True, slots=True)
class GraphicsTile:
    """One GT. A value that no file shows is None; `slept_ms` is the time spent in the deepest idle state (C6)."""

    clock_mhz: int | None
    is_throttled: bool | None
    is_throttled_by_heat: bool | None
    slept_ms: int | None


def read_tiles(function: DrmFunction) -> tuple[GraphicsTile, ...]:
    """Return the GTs of a GPU in the order of their names."""
    if function.driver == "xe":
        return tuple(_xe(folder) for folder in _folders_of_xe(function.folder))
    folder = function.folder / "drm" / (function.drm.card or "card0") / "gt"
    if not folder.is_dir():
        folder = function.folder.parent / "gt"  # the function was found through its card
    return tuple(_i915(folder / name) for name in entries_of(folder) if _GT.fullmatch(name))


def _folders_of_xe(function: Path) -> Iterator[Path]:
    for tile in entries_of(function):
        if _TILE.fullmatch(tile):
            yield from (function / tile / name for name in entries_of(function / tile) if _GT.fullmatch(name))


def _xe(folder: Path) -> GraphicsTile:
    throttle = folder / "freq0/throttle"
    return GraphicsTile(
        read_number(folder / "freq0/act_freq"),
        _flag(throttle / "status"),
        _any(throttle, ("reason_thermal", "reason_prochot", "reason_vr_thermalert")),
        read_number(folder / "gtidle/idle_residency_ms"),
    )


def _i915(folder: Path) -> GraphicsTile:
    names = ("throttle_reason_thermal", "throttle_reason_prochot", "throttle_reason_vr_thermalert")
    return GraphicsTile(
        read_number(folder / "rps_act_freq_mhz"),
        _flag(folder / "throttle_reason_status"),
        _any(folder, names),
        read_number(folder / "rc6_residency_ms"),
    )


def _flag(path: Path) -> bool | None:
    text = read_text(path)
    return text == "1" if text in ("0", "1") else None


def _any(folder: Path, names: tuple[str, ...]) -> bool | None:
    flags = [flag for name in names if (flag := _flag(folder / name)) is not None]
    return any(flags) if flags else None
