"""One round of measurements of AMD's GPUs: the driver's text files first, then its table of metrics.

In: roots. Out: a reading of each GPU. A file that is absent, can't be read (EPERM while the GPU sleeps, EINVAL where
the firmware lacks it) or holds no number gives no value: it is never 0 instead.

Source: Linux Documentation/gpu/amdgpu (gpu_busy_percent, mem_busy_percent, mem_info_*, pcie_replay_count, ras), thermal
(labels of hwmon: edge, junction, mem, vddgfx, sclk, mclk, PPT).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.hardware.amd.facts import AMD, DRIVERS
from dra_driver.hardware.amd.metering.gpu_metrics import read_gpu_metrics
from dra_driver.hardware.amd.metering.quantities import BLOCKS, AmdMeasure, errors_of_block
from dra_driver.hardware.amd.ras import CORRECTED, UNCORRECTED, block_counts, total_errors
from dra_driver.hardware.drm import read_functions
from dra_driver.hardware.metered import Measure, Reading
from dra_driver.hardware.pci import read_text
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs.hwmon import average_power, read_number, read_sensors, value_of

_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_FILES = {
    "gpu_busy_percent": Measure.GPU_PERCENT,
    "mem_busy_percent": Measure.MEMORY_COPY_PERCENT,
    "vcn_busy_percent": Measure.DECODER_PERCENT,
    "pcie_replay_count": Measure.PCIE_REPLAYS_TOTAL,
}
_SENSORS = (  # kind, labels, measure, and how many of the kernel's units make one unit of the measure
    ("temp", ("edge",), Measure.TEMPERATURE_C, 1000),
    ("temp", ("junction",), AmdMeasure.JUNCTION_TEMPERATURE_C, 1000),
    ("temp", ("mem",), Measure.MEMORY_TEMPERATURE_C, 1000),
    ("power", ("ppt", "fast ppt", ""), Measure.POWER_W, 1_000_000),
    ("freq", ("sclk",), Measure.SM_CLOCK_MHZ, 1_000_000),
    ("freq", ("mclk",), Measure.MEMORY_CLOCK_MHZ, 1_000_000),
    ("in", ("vddgfx",), AmdMeasure.GRAPHICS_VOLTAGE_MV, 1),
)
_MEMORIES = (
    ("vram", AmdMeasure.MEMORY_TOTAL_BYTES, Measure.MEMORY_USED_BYTES, Measure.MEMORY_FREE_BYTES),
    (
        "vis_vram",
        AmdMeasure.VISIBLE_MEMORY_TOTAL_BYTES,
        AmdMeasure.VISIBLE_MEMORY_USED_BYTES,
        AmdMeasure.VISIBLE_MEMORY_FREE_BYTES,
    ),
    ("gtt", AmdMeasure.HOST_MEMORY_TOTAL_BYTES, AmdMeasure.HOST_MEMORY_USED_BYTES, AmdMeasure.HOST_MEMORY_FREE_BYTES),
)


def read_all(roots: Roots) -> Iterator[Reading]:
    """Yield a reading of each GPU that its kernel driver drives."""
    for function in read_functions(roots, AMD, DRIVERS):
        yield Reading(function.address, time.monotonic(), measures_of_function(function.folder))


def measures_of_function(folder: Path) -> dict[str, float]:
    """Return the measures that the files of a PCI function show; a text file is preferred to the binary table."""
    sensors = read_sensors(folder)
    values = read_gpu_metrics(folder / "gpu_metrics")
    for kind, labels, measure, units in _SENSORS:
        value = value_of(sensors, kind, *labels)
        if value is not None:
            values[measure] = value / units
    if (average := average_power(folder)) is not None:
        values[AmdMeasure.AVERAGE_POWER_W] = average / 1_000_000
    for name, measure in _FILES.items():
        number = read_number(folder / name)
        if number is not None and number >= 0:
            values[measure] = float(number)
    return {**values, **_memories(folder), **_links(folder), **_errors(folder)}


def _memories(folder: Path) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, total, used, free in _MEMORIES:
        maximum, now = (read_number(folder / f"mem_info_{name}_{word}") for word in ("total", "used"))
        if maximum:
            values[total] = float(maximum)
        if now is not None and now >= 0:
            values[used] = float(now)
        if maximum and now is not None and 0 <= now <= maximum:
            values[free] = float(maximum - now)
    return values


def _links(folder: Path) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, measure in (("current", AmdMeasure.PCIE_SPEED_GTS), ("max", AmdMeasure.PCIE_MAX_SPEED_GTS)):
        found = _SPEED.match(read_text(folder / f"{name}_link_speed") or "")
        if found:
            values[measure] = float(found[1])
    return values


def _errors(folder: Path) -> dict[str, float]:
    counts = block_counts(folder)
    values = {errors_of_block(kind, block): float(n) for (kind, block), n in counts.items() if block in BLOCKS}
    for measure, kind in (
        (AmdMeasure.ERRORS_CORRECTED_TOTAL, CORRECTED),
        (AmdMeasure.ERRORS_UNCORRECTED_TOTAL, UNCORRECTED),
    ):
        if (total := total_errors(counts, kind)) is not None:
            values[measure] = float(total)
    return values
