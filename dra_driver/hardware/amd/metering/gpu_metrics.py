"""The binary table `gpu_metrics`: the firmware's measurements of a GPU, all of the same moment.

In: the bytes of the file. Out: measures. A table of an unknown revision has none, and a field of all ones is one that
the GPU lacks. Only tables of GPUs with memory of their own are read; those of APUs (2.x, 3.x) have other fields.

Source: Linux drivers/gpu/drm/amd/include/kgd_pp_interface.h (gpu_metrics_v1_1 to v1_8). The accumulator of energy
counts 2^-16 J.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from dra_driver.hardware.amd.metering.quantities import AmdMeasure
from dra_driver.hardware.metered import Measure

_HEADER = struct.Struct("<HBB")  # size, format revision, content revision
_MAX_BYTES = 16 << 10
_ENERGY_AT = {1: 24, 2: 24, 3: 24, 4: 24, 5: 88, 6: 16, 7: 24, 8: 24}  # by content revision of format 1
_JOULES_EACH = 2**-16
_OFFSETS_TO_1_3 = {  # of revisions 1.1 to 1.3
    4: Measure.TEMPERATURE_C,
    6: AmdMeasure.JUNCTION_TEMPERATURE_C,
    8: Measure.MEMORY_TEMPERATURE_C,
    16: Measure.GPU_PERCENT,
    18: Measure.MEMORY_COPY_PERCENT,
    22: Measure.POWER_W,
}
_OFFSETS_FROM_1_4 = {  # of revisions 1.4 to 1.8
    4: AmdMeasure.JUNCTION_TEMPERATURE_C,
    6: Measure.MEMORY_TEMPERATURE_C,
    10: Measure.POWER_W,
    12: Measure.GPU_PERCENT,
    14: Measure.MEMORY_COPY_PERCENT,
}


def read_gpu_metrics(path: Path) -> dict[str, float]:
    """Return the measures of the table in a file; none if it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        return measures_of(os.read(fd, _MAX_BYTES))
    except OSError:
        return {}
    finally:
        os.close(fd)


def measures_of(table: bytes) -> dict[str, float]:
    """Return the measures of a table; none if it is cut short or of an unknown revision."""
    if len(table) < _HEADER.size:
        return {}
    size, form, content = _HEADER.unpack_from(table)
    at = _ENERGY_AT.get(content) if form == 1 else None
    if at is None or len(table) < max(size, at + 8):
        return {}
    offsets = _OFFSETS_TO_1_3 if content <= 3 else _OFFSETS_FROM_1_4
    numbers = {measure: struct.unpack_from("<H", table, offset)[0] for offset, measure in offsets.items()}
    values: dict[str, float] = {measure: float(number) for measure, number in numbers.items() if number != 0xFFFF}
    (energy,) = struct.unpack_from("<Q", table, at)
    if energy not in (0, 0xFFFF_FFFF_FFFF_FFFF):
        values[Measure.ENERGY_MJ_TOTAL] = energy * _JOULES_EACH * 1000
    return values
