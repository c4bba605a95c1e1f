"""Names: AMD's measurements under the names, units and labels of AMD's own exporter.

Source: ROCm/device-metrics-exporter, docs/configuration/metricslist.md (lower case, all of them gauges; MB are MiB).
"""

from __future__ import annotations

import enum
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dra_driver.hardware.amd.health import AMD, CORRECTED, DRIVERS, UNCORRECTED, AmdGpu, block_counts, total_errors
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.metered import WHOLE_MIB, Measure, MetricNames, Pairs, Reading, gauge
from dra_driver.hardware.pci import read_functions, read_text
from dra_driver.hardware.port import Roots
from dra_driver.hardware.sysfs import average_power, read_number, read_sensors, value_of

# Quantities that only AMD's GPUs measure, in addition to those of all vendors (`hardware/metered.py`).

# The blocks whose errors the kernel counts, as it calls them, and as AMD's exporter does.
BLOCKS = {
    name: name
    for name in (
        *("sdma", "gfx", "mmhub", "athub", "hdp", "xgmi_wafl", "df", "smn", "sem"),
        *("mp0", "mp1", "fuse", "umc", "mca", "vcn", "jpeg", "ih", "mpio"),
    )
} | {"pcie_bif": "bif"}


def errors_of_block(kind: str, block: str) -> str:
    """Return the name of the quantity: the errors of a kind that a block counted.

    >>> errors_of_block("ue", "umc")
    'errors-ue-umc'
    """
    return f"errors-{kind}-{block}"


class AmdMeasure(enum.StrEnum):
    """A quantity that only AMD's GPUs measure, in the unit of its name."""

    JUNCTION_TEMPERATURE_C = "junctionTemperatureC"
    AVERAGE_POWER_W = "averagePowerW"
    GRAPHICS_VOLTAGE_MV = "graphicsVoltageMillivolts"
    PCIE_SPEED_GTS = "pcieSpeedGTs"
    PCIE_MAX_SPEED_GTS = "pcieMaxSpeedGTs"
    MEMORY_TOTAL_BYTES = "memoryTotalBytes"
    VISIBLE_MEMORY_TOTAL_BYTES = "visibleMemoryTotalBytes"
    VISIBLE_MEMORY_USED_BYTES = "visibleMemoryUsedBytes"
    VISIBLE_MEMORY_FREE_BYTES = "visibleMemoryFreeBytes"
    HOST_MEMORY_TOTAL_BYTES = "hostMemoryTotalBytes"
    HOST_MEMORY_USED_BYTES = "hostMemoryUsedBytes"
    HOST_MEMORY_FREE_BYTES = "hostMemoryFreeBytes"
    ERRORS_CORRECTED_TOTAL = "errorsCorrectedTotal"
    ERRORS_UNCORRECTED_TOTAL = "errorsUncorrectedTotal"
    PCIE_MBPS = "pcieMegabitsPerSecond"
    PCIE_RECOVERIES_TOTAL = "pcieRecoveriesTotal"
    PCIE_REPLAY_ROLLOVERS_TOTAL = "pcieReplayRolloversTotal"
    PCIE_NACKS_SENT_TOTAL = "pcieNacksSentTotal"
    PCIE_NACKS_RECEIVED_TOTAL = "pcieNacksReceivedTotal"


_Q, _A, _MIB = Measure, AmdMeasure, WHOLE_MIB
_SYSTEM = (("clock_index", "0"), ("clock_type", "GPU_CLOCK_TYPE_SYSTEM"))
_MEMORY = (("clock_index", "8"), ("clock_type", "GPU_CLOCK_TYPE_MEMORY"))
_STACKS = tuple(f"memoryStack{index}TemperatureC" for index in range(4))  # of high-bandwidth memory
_STACK_TEMPERATURES = tuple(
    gauge("gpu_hbm_temperature", "Temperature of a stack of memory (in C).", stack, labels=(("hbm_index", str(index)),))
    for index, stack in enumerate(_STACKS)
)
_COMPUTE_DIES = tuple(f"computeDie{index}Percent" for index in range(8))  # XCCs, as the kernel calls them
_USE_OF_DIES = tuple(
    gauge(
        "gpu_gfx_busy_instantaneous",
        "Use of a compute die at this moment (in %).",
        die,
        labels=(("xcc_index", str(index)),),
    )
    for index, die in enumerate(_COMPUTE_DIES)
)
_ERRORS_OF_BLOCKS = tuple(
    gauge(f"gpu_ecc_{word}_{name}", f"{what} in {name.upper()}.", errors_of_block(kind, block))
    for block, name in sorted(BLOCKS.items())
    for kind, word, what in (
        (CORRECTED, "correct", "Errors that were corrected"),
        (UNCORRECTED, "uncorrect", "Errors that could not be corrected"),
    )
)
_NAMES = (
    gauge("gpu_power_usage", "Power drawn (in W).", _Q.POWER_W),
    gauge("gpu_package_power", "Power drawn by the socket (in W).", _Q.POWER_W),
    gauge("gpu_average_package_power", "Power drawn by the socket, on average (in W).", _A.AVERAGE_POWER_W),
    gauge("gpu_edge_temperature", "Temperature at the edge (in C).", _Q.TEMPERATURE_C),
    gauge("gpu_junction_temperature", "Temperature of the hottest spot (in C).", _A.JUNCTION_TEMPERATURE_C),
    gauge("gpu_memory_temperature", "Temperature of the memory (in C).", _Q.MEMORY_TEMPERATURE_C),
    *_STACK_TEMPERATURES,
    gauge("gpu_gfx_activity", "Use of the graphics and compute engine (in %).", _Q.GPU_PERCENT),
    *_USE_OF_DIES,
    gauge("gpu_umc_activity", "Use of the memory controllers (in %).", _Q.MEMORY_COPY_PERCENT),
    gauge("gpu_vcn_activity", "Use of the video engines (in %).", _Q.DECODER_PERCENT),
    gauge("gpu_gfx_voltage", "Voltage of the graphics engine (in mV).", _A.GRAPHICS_VOLTAGE_MV),
    gauge("gpu_energy_consumed", "Energy used (in uJ).", _Q.ENERGY_MJ_TOTAL, scale=1000.0),
    gauge("gpu_clock", "Clocks (in MHz).", _Q.SM_CLOCK_MHZ, labels=_SYSTEM),
    gauge("gpu_clock", "Clocks (in MHz).", _Q.MEMORY_CLOCK_MHZ, labels=_MEMORY),
    gauge("pcie_speed", "Speed of the PCIe link (in GT/s).", _A.PCIE_SPEED_GTS),
    gauge("pcie_max_speed", "Highest speed of the PCIe link (in GT/s).", _A.PCIE_MAX_SPEED_GTS),
    gauge("pcie_bandwidth", "Traffic on the PCIe link (in Mb/s).", _A.PCIE_MBPS),
    gauge("pcie_replay_count", "PCIe retries.", _Q.PCIE_REPLAYS_TOTAL),
    gauge("pcie_replay_rollover_count", "Overflows of the PCIe link's retry number.", _A.PCIE_REPLAY_ROLLOVERS_TOTAL),
    gauge("pcie_recovery_count", "Recoveries of the PCIe link.", _A.PCIE_RECOVERIES_TOTAL),
    gauge("pcie_nack_sent_count", "Packets that the GPU refused.", _A.PCIE_NACKS_SENT_TOTAL),
    gauge("pcie_nack_received_count", "Packets of the GPU that were refused.", _A.PCIE_NACKS_RECEIVED_TOTAL),
    gauge("gpu_total_vram", "Memory of the GPU (in MiB).", _A.MEMORY_TOTAL_BYTES, scale=_MIB),
    gauge("gpu_used_vram", "Memory that is used (in MiB).", _Q.MEMORY_USED_BYTES, scale=_MIB),
    gauge("gpu_free_vram", "Memory that is free (in MiB).", _Q.MEMORY_FREE_BYTES, scale=_MIB),
    gauge(
        "gpu_total_visible_vram",
        "Memory that the host reaches (in MiB).",
        _A.VISIBLE_MEMORY_TOTAL_BYTES,
        scale=_MIB,
    ),
    gauge(
        "gpu_used_visible_vram", "Used memory that the host reaches (in MiB).", _A.VISIBLE_MEMORY_USED_BYTES, scale=_MIB
    ),
    gauge(
        "gpu_free_visible_vram", "Free memory that the host reaches (in MiB).", _A.VISIBLE_MEMORY_FREE_BYTES, scale=_MIB
    ),
    gauge("gpu_total_gtt", "The host's memory that the GPU may use (in MiB).", _A.HOST_MEMORY_TOTAL_BYTES, scale=_MIB),
    gauge("gpu_used_gtt", "The host's memory that the GPU uses (in MiB).", _A.HOST_MEMORY_USED_BYTES, scale=_MIB),
    gauge(
        "gpu_free_gtt", "The host's memory that the GPU may still use (in MiB).", _A.HOST_MEMORY_FREE_BYTES, scale=_MIB
    ),
    gauge("gpu_ecc_correct_total", "Errors that were corrected.", _A.ERRORS_CORRECTED_TOTAL),
    gauge("gpu_ecc_uncorrect_total", "Errors that could not be corrected.", _A.ERRORS_UNCORRECTED_TOTAL),
    *_ERRORS_OF_BLOCKS,
)


def gpu_labels(index: int, gpu: GpuFacts) -> Pairs:
    """Return the labels that name a GPU, or a partition of one."""
    return (
        ("gpu_id", str(index)),
        ("gpu_partition_id", "" if gpu.part_number is None else str(gpu.part_number)),
        *(_own_labels(gpu) if isinstance(gpu, AmdGpu) else ()),
        ("pci_bus_id", gpu.pci_address),
        ("card_series", gpu.product_name or ""),
        ("card_vendor", "Advanced Micro Devices Inc"),
    )


def _own_labels(gpu: AmdGpu) -> Pairs:
    return (
        ("gpu_uuid", gpu.unique_id or ""),
        ("card_model", gpu.model_number or gpu.product_name or ""),
        ("serial_number", gpu.serial or ""),
        ("gpu_compute_partition_type", (gpu.compute_mode or "").lower()),
        ("gpu_memory_partition_type", (gpu.memory_mode or "").lower()),
    )


NAMES = MetricNames(
    _NAMES,
    gpu_labels,
    fields={
        "driver_version": lambda gpu, version: gpu.driver_version or version,
        "vbios_version": lambda gpu, _: gpu.vbios_version or "",
    },
    default_fields=("driver_version", "vbios_version"),
    hostname_label="hostname",
)


# The binary table `gpu_metrics`: the firmware's measurements of a GPU, all of the same moment.
# Source: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h, struct gpu_metrics_v1_1 to v1_8.

_HEADER = struct.Struct("<HBB")  # size, format revision, content revision
_MAX_BYTES = 16 << 10
_PCIE, _DIES = struct.Struct("<QQQQII"), struct.Struct("<8I")
_UNKNOWN_64, _UNKNOWN_32 = 0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF
_JOULES_EACH = 2**-16


class _Places(NamedTuple):
    """Where a content revision of format 1 has its wide numbers; 0 where it has none."""

    energy: int
    pcie: int = 0  # bandwidth, recoveries, replays, rollovers, and from 1.5 two numbers of refused packets
    partitions: int = 0  # their number; the busy percentages of the first partition's dies follow


_PLACES = {
    **dict.fromkeys((1, 2, 3), _Places(24)),
    4: _Places(24, 72),
    5: _Places(88, 136),
    6: _Places(16, 88, 306),
    **dict.fromkeys((7, 8), _Places(24, 96, 338)),
}
_OFFSETS_TO_1_3 = {  # of revisions 1.1 to 1.3
    4: Measure.TEMPERATURE_C,
    6: AmdMeasure.JUNCTION_TEMPERATURE_C,
    8: Measure.MEMORY_TEMPERATURE_C,
    16: Measure.GPU_PERCENT,
    18: Measure.MEMORY_COPY_PERCENT,
    22: Measure.POWER_W,
    **{88 + 2 * index: stack for index, stack in enumerate(_STACKS)},
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
    places = _PLACES.get(content) if form == 1 else None
    if places is None or len(table) < max(size, places.energy + 8):
        return {}
    offsets = _OFFSETS_TO_1_3 if content <= 3 else _OFFSETS_FROM_1_4
    there = ((offset, measure) for offset, measure in offsets.items() if offset + 2 <= size)
    numbers = {measure: struct.unpack_from("<H", table, offset)[0] for offset, measure in there}
    values: dict[str, float] = {measure: float(number) for measure, number in numbers.items() if number != 0xFFFF}
    (energy,) = struct.unpack_from("<Q", table, places.energy)
    if energy not in (0, _UNKNOWN_64):
        values[Measure.ENERGY_MJ_TOTAL] = energy * _JOULES_EACH * 1000
    return {**values, **_pcie(table[:size], places.pcie, content), **_busy_dies(table[:size], places.partitions)}


def _pcie(table: bytes, at: int, content: int) -> dict[str, float]:
    if not at or len(table) < at + _PCIE.size:
        return {}
    *wide, sent, received = _PCIE.unpack_from(table, at)
    names = (AmdMeasure.PCIE_MBPS, AmdMeasure.PCIE_RECOVERIES_TOTAL, None, AmdMeasure.PCIE_REPLAY_ROLLOVERS_TOTAL)
    values: dict[str, float] = {
        name: float(value) for name, value in zip(names, wide, strict=True) if name and value != _UNKNOWN_64
    }
    if content > 4:
        refused = ((AmdMeasure.PCIE_NACKS_SENT_TOTAL, sent), (AmdMeasure.PCIE_NACKS_RECEIVED_TOTAL, received))
        values |= {name: float(value) for name, value in refused if value != _UNKNOWN_32}
    return values


def _busy_dies(table: bytes, at: int) -> dict[str, float]:
    """Return the use of each compute die of a GPU that is not divided."""
    dies = -(-(at + 2) // 8) * 8  # the partitions' numbers are aligned to 8 bytes
    if not at or len(table) < dies + _DIES.size or struct.unpack_from("<H", table, at)[0] != 1:
        return {}
    percent = zip(_COMPUTE_DIES, _DIES.unpack_from(table, dies), strict=True)
    return {name: float(value) for name, value in percent if value <= 100}


# One round of measurements of AMD's GPUs: the driver's text files first, then its table of metrics.

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
