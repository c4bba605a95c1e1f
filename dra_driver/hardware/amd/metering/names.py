"""Names: AMD's measurements under the names, units and labels of AMD's own exporter.

Source: ROCm/device-metrics-exporter, docs/configuration/metricslist.md (lower case, all of them gauges; MB are MiB).
"""

from __future__ import annotations

from dra_driver.hardware.amd.facts import AmdGpu
from dra_driver.hardware.amd.metering.quantities import BLOCKS, AmdMeasure, errors_of_block
from dra_driver.hardware.amd.ras import CORRECTED, UNCORRECTED
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.metered import Measure
from dra_driver.hardware.metric_names import WHOLE_MIB, MetricNames, Pairs, gauge

_Q, _A, _MIB = Measure, AmdMeasure, WHOLE_MIB
_SYSTEM = (("clock_index", "0"), ("clock_type", "GPU_CLOCK_TYPE_SYSTEM"))
_MEMORY = (("clock_index", "8"), ("clock_type", "GPU_CLOCK_TYPE_MEMORY"))
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
    gauge("gpu_gfx_activity", "Use of the graphics and compute engine (in %).", _Q.GPU_PERCENT),
    gauge("gpu_umc_activity", "Use of the memory controllers (in %).", _Q.MEMORY_COPY_PERCENT),
    gauge("gpu_vcn_activity", "Use of the video engines (in %).", _Q.DECODER_PERCENT),
    gauge("gpu_gfx_voltage", "Voltage of the graphics engine (in mV).", _A.GRAPHICS_VOLTAGE_MV),
    gauge("gpu_energy_consumed", "Energy used (in uJ).", _Q.ENERGY_MJ_TOTAL, scale=1000.0),
    gauge("gpu_clock", "Clocks (in MHz).", _Q.SM_CLOCK_MHZ, labels=_SYSTEM),
    gauge("gpu_clock", "Clocks (in MHz).", _Q.MEMORY_CLOCK_MHZ, labels=_MEMORY),
    gauge("pcie_speed", "Speed of the PCIe link (in GT/s).", _A.PCIE_SPEED_GTS),
    gauge("pcie_max_speed", "Highest speed of the PCIe link (in GT/s).", _A.PCIE_MAX_SPEED_GTS),
    gauge("pcie_replay_count", "PCIe retries.", _Q.PCIE_REPLAYS_TOTAL),
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
        ("card_model", f"0x{gpu.device_id:04x}" if gpu.device_id else ""),
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
