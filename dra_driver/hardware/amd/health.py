"""The health of one of AMD's GPUs: error counters, bad pages, temperatures, the bus, and resets by the kernel driver.

In: a function, the kernel log. Out: what its files report now. A file that a GPU lacks is never taken as a sign that
all is well.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.hardware.amd.facts import AMD, DRIVERS
from dra_driver.hardware.amd.ras import UNCORRECTED, bad_pages, block_counts, total_errors
from dra_driver.hardware.amd.resets import ResetLog
from dra_driver.hardware.bus import bus_state
from dra_driver.hardware.drm import DrmFunction, read_functions
from dra_driver.hardware.evidence import BusState, DriverReset, Vitals
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs.hwmon import margins, read_sensors
from dra_driver.model.machine import boot_time


def read_all_vitals(roots: Roots, resets: ResetLog | None = None) -> Iterator[Vitals]:
    """Yield the vitals of each GPU, as its files show them now."""
    by_gpu = resets.read() if resets is not None else {}
    none = DriverReset.NONE if resets is not None and resets.is_read else None
    for function in read_functions(roots, AMD, DRIVERS):
        yield read_vitals(function, roots, by_gpu.get(function.address, none))


def read_vitals(function: DrmFunction, roots: Roots, reset: DriverReset | None = None) -> Vitals:
    """Return the vitals of one GPU, as its files show them now."""
    address, folder = function.address, function.folder
    if reset is DriverReset.LOST or bus_state(roots, address, DRIVERS) is BusState.DEAD:
        return Vitals(address, boot_time(), is_lost=True)
    pages = bad_pages(folder)
    margin = min(margins(read_sensors(folder)), default=None)
    return Vitals(
        address,
        boot_time(),
        ecc_uncorrectable=total_errors(block_counts(folder), UNCORRECTED),
        remap_pending=None if pages is None else "P" in pages,
        remap_failed=None if pages is None else "F" in pages,
        thermal_margin=margin,
        slowdown_margin=None if margin is None else 0,
        reset=reset,
    )
