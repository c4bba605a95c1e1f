"""The health of Intel's GPUs, as far as sysfs shows it: the bus, temperatures, and clocks throttled by heat.

In: a function. Out: what its files report now. A file that a GPU lacks is never taken as a sign that all is well.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.hardware.bus import bus_state
from dra_driver.hardware.drm import DrmFunction, read_functions
from dra_driver.hardware.evidence import HARDWARE_THERMAL, BusState, Vitals
from dra_driver.hardware.intel.facts import DRIVERS, INTEL
from dra_driver.hardware.intel.graphics_tiles import read_tiles
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs.hwmon import margins, read_sensors
from dra_driver.model.machine import boot_time


def read_all_vitals(roots: Roots) -> Iterator[Vitals]:
    """Yield the vitals of each GPU, as its files show them now."""
    return (read_vitals(function, roots) for function in read_functions(roots, INTEL, DRIVERS))


def read_vitals(function: DrmFunction, roots: Roots) -> Vitals:
    """Return the vitals of one GPU, as its files show them now."""
    if bus_state(roots, function.address, DRIVERS) is BusState.DEAD:
        return Vitals(function.address, boot_time(), is_lost=True)
    heat = [tile.is_throttled_by_heat for tile in read_tiles(function) if tile.is_throttled_by_heat is not None]
    margin = min(margins(read_sensors(function.folder)), default=None)
    return Vitals(
        function.address,
        boot_time(),
        thermal_margin=margin,
        slowdown_margin=None if margin is None else 0,
        clock_reasons=(HARDWARE_THERMAL if any(heat) else 0) if heat else None,
    )
