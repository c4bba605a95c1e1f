"""Quantities that only AMD's GPUs measure, in addition to those of all vendors (`hardware/metered.py`)."""

from __future__ import annotations

import enum

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
