"""Quantities that only AMD's GPUs measure, in addition to those of all vendors (`hardware/metered.py`)."""

from __future__ import annotations

import enum


class AmdMeasure(enum.StrEnum):
    """A quantity that only AMD's GPUs measure, in the unit of its name."""

    JUNCTION_TEMPERATURE_C = "junctionTemperatureC"
    GRAPHICS_VOLTAGE_MV = "graphicsVoltageMillivolts"
    PCIE_SPEED_GTS = "pcieSpeedGTs"
    PCIE_MOST_SPEED_GTS = "pcieMaxSpeedGTs"
    MEMORY_TOTAL_BYTES = "memoryTotalBytes"
    VISIBLE_MEMORY_TOTAL_BYTES = "visibleMemoryTotalBytes"
    VISIBLE_MEMORY_USED_BYTES = "visibleMemoryUsedBytes"
    VISIBLE_MEMORY_FREE_BYTES = "visibleMemoryFreeBytes"
    HOST_MEMORY_TOTAL_BYTES = "hostMemoryTotalBytes"
    HOST_MEMORY_USED_BYTES = "hostMemoryUsedBytes"
    HOST_MEMORY_FREE_BYTES = "hostMemoryFreeBytes"
    ERRORS_CORRECTED_TOTAL = "errorsCorrectedTotal"
    ERRORS_UNCORRECTED_TOTAL = "errorsUncorrectedTotal"
