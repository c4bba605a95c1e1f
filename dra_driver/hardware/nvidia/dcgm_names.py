"""The names of NVIDIA's exporter: every quantity under the name by which its dashboards know it, and its labels.

One table: name, kind, unit in the meaning, quantity, and whether it is published unless a selection is given. The names
and units are NVIDIA's, so that dashboards and rules made for them work; docs/telemetry.md shows the table.
Source: NVIDIA DCGM's field identifiers, and the fields that dcgm-exporter exports unless told otherwise.
"""

from __future__ import annotations

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.metered import Measure
from dra_driver.hardware.metric_names import (
    LAST_XID,
    RECENT_CLOCK_EVENTS,
    RECENT_XIDS,
    WHOLE_MIB,
    MetricName,
    MetricNames,
    Pairs,
)
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.telemetry.exposition import FamilyHead, SampleKind

DRIVER_VERSION = "DCGM_FI_DRIVER_VERSION"


def _gauge(name: str, meaning: str, quantity: str, *, scale: float = 1.0, is_default: bool = True) -> MetricName:
    return MetricName(FamilyHead(f"DCGM_FI_{name}", SampleKind.GAUGE, meaning), quantity, scale, is_default)


def _counter(name: str, meaning: str, quantity: Measure, *, is_default: bool = True) -> MetricName:
    return MetricName(FamilyHead(f"DCGM_FI_{name}", SampleKind.COUNTER, meaning), quantity, 1.0, is_default)


_Q = Measure
_MET = "Time that clocks were throttled (in ns) by "
_CALLED = (  # each takes a call of its own
    ("DEV_FB_TOTAL", "Memory of the GPU (in MiB).", _Q.MEMORY_TOTAL_BYTES),
    (
        "DEV_FB_USED_PERCENT",
        "Share of the memory that is used, without what is reserved (0 to 1).",
        _Q.MEMORY_USED_RATIO,
    ),
    ("DEV_MAX_SM_CLOCK", "Highest clock of the multiprocessors (in MHz).", _Q.SM_CLOCK_MAX_MHZ),
    ("DEV_MAX_MEM_CLOCK", "Highest clock of the memory (in MHz).", _Q.MEMORY_CLOCK_MAX_MHZ),
    ("DEV_FAN_SPEED", "Speed of the fan (in %).", _Q.FAN_PERCENT),
    ("DEV_PSTATE", "Performance state, 0 (highest) to 15.", _Q.PERFORMANCE_STATE),
    ("DEV_CLOCKS_EVENT_REASONS", "Why the clocks are throttled, as a bit set.", _Q.CLOCK_REASONS),
    ("DEV_CLOCK_THROTTLE_REASONS", "The same under its older name.", _Q.CLOCK_REASONS),
    ("DEV_POWER_MGMT_LIMIT", "Limit of power that is set (in W).", _Q.POWER_LIMIT_W),
    ("DEV_POWER_MGMT_LIMIT_MIN", "Lowest limit of power that can be set (in W).", _Q.POWER_LIMIT_LEAST_W),
    ("DEV_POWER_MGMT_LIMIT_MAX", "Highest limit of power that can be set (in W).", _Q.POWER_LIMIT_MAX_W),
    (
        "DEV_ENFORCED_POWER_LIMIT",
        "Limit of power that is enforced, with all limiters (in W).",
        _Q.POWER_LIMIT_ENFORCED_W,
    ),
    ("DEV_SLOWDOWN_TEMP", "Temperature at which the GPU slows down (in C).", _Q.SLOWDOWN_TEMPERATURE_C),
    ("DEV_SHUTDOWN_TEMP", "Temperature at which the GPU shuts down (in C).", _Q.SHUTDOWN_TEMPERATURE_C),
    ("DEV_GPU_MAX_OP_TEMP", "Highest temperature at which the GPU works (in C).", _Q.GPU_TEMPERATURE_MAX_C),
    ("DEV_MEM_MAX_OP_TEMP", "Highest temperature at which the memory works (in C).", _Q.MEMORY_TEMPERATURE_MAX_C),
    ("DEV_PCIE_LINK_GEN", "Current generation of the PCIe link.", _Q.PCIE_GENERATION),
    ("DEV_PCIE_LINK_WIDTH", "Current number of lanes of the PCIe link.", _Q.PCIE_LANES),
)
NAMES: tuple[MetricName, ...] = (
    _gauge("DEV_SM_CLOCK", "Clock of the multiprocessors (in MHz).", _Q.SM_CLOCK_MHZ),
    _gauge("DEV_MEM_CLOCK", "Clock of the memory (in MHz).", _Q.MEMORY_CLOCK_MHZ),
    _gauge("DEV_MEMORY_TEMP", "Temperature of the memory (in C).", _Q.MEMORY_TEMPERATURE_C),
    _gauge("DEV_GPU_TEMP", "Temperature of the GPU (in C).", _Q.TEMPERATURE_C),
    _gauge("DEV_POWER_USAGE", "Power drawn (in W).", _Q.POWER_W),
    _counter("DEV_TOTAL_ENERGY_CONSUMPTION", "Energy used since the driver was loaded (in mJ).", _Q.ENERGY_MJ_TOTAL),
    _counter("DEV_PCIE_REPLAY_COUNTER", "PCIe retries.", _Q.PCIE_REPLAYS_TOTAL),
    _gauge("DEV_GPU_UTIL", "Share of the time in which a kernel ran (in %).", _Q.GPU_PERCENT),
    _gauge(
        "DEV_MEM_COPY_UTIL", "Share of the time in which memory was read or written (in %).", _Q.MEMORY_COPY_PERCENT
    ),
    _gauge("DEV_ENC_UTIL", "Use of the encoders (in %).", _Q.ENCODER_PERCENT),
    _gauge("DEV_DEC_UTIL", "Use of the decoders (in %).", _Q.DECODER_PERCENT),
    _gauge("DEV_XID_ERRORS", "Code of the newest Xid error; 0 before the first.", LAST_XID),
    _gauge("DEV_FB_FREE", "Memory that is free (in MiB).", _Q.MEMORY_FREE_BYTES, scale=WHOLE_MIB),
    _gauge("DEV_FB_USED", "Memory that is used (in MiB).", _Q.MEMORY_USED_BYTES, scale=WHOLE_MIB),
    _gauge(
        "DEV_FB_RESERVED",
        "Memory that the driver keeps for itself (in MiB).",
        _Q.MEMORY_RESERVED_BYTES,
        scale=WHOLE_MIB,
    ),
    _counter("DEV_NVLINK_BANDWIDTH_TOTAL", "Data sent and received on all NVLinks (in KiB).", _Q.NVLINK_KIB_TOTAL),
    _counter(
        "DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.", _Q.REMAPPED_UNCORRECTABLE_TOTAL
    ),
    _counter("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.", _Q.REMAPPED_CORRECTABLE_TOTAL),
    _gauge("DEV_ROW_REMAP_FAILURE", "Whether remapping a row has failed.", _Q.REMAP_FAILED),
    _gauge(
        "PROF_GR_ENGINE_ACTIVE", "Share of the time in which the compute engine was busy (0 to 1).", _Q.GRAPHICS_RATIO
    ),
    _gauge(
        "PROF_PIPE_TENSOR_ACTIVE", "Share of the cycles in which the tensor pipes worked (0 to 1).", _Q.TENSOR_RATIO
    ),
    _gauge("PROF_DRAM_ACTIVE", "Share of the cycles in which the memory sent or received (0 to 1).", _Q.DRAM_RATIO),
    _gauge("PROF_PCIE_TX_BYTES", "Data sent over PCIe (in bytes per second).", _Q.PCIE_SENT_BYTES_PER_S),
    _gauge("PROF_PCIE_RX_BYTES", "Data received over PCIe (in bytes per second).", _Q.PCIE_RECEIVED_BYTES_PER_S),
    # Published where a selection names them.
    _gauge("PROF_SM_ACTIVE", "Share of the cycles in which a multiprocessor had work (0 to 1).", _Q.SM_RATIO),
    _gauge(
        "PROF_SM_OCCUPANCY", "Warps resident, as a share of the most (0 to 1).", _Q.SM_OCCUPANCY_RATIO, is_default=False
    ),
    _gauge(
        "PROF_PIPE_FP64_ACTIVE",
        "Share of the cycles in which FP64 pipes worked (0 to 1).",
        _Q.FP64_RATIO,
        is_default=False,
    ),
    _gauge(
        "PROF_PIPE_FP32_ACTIVE",
        "Share of the cycles in which FP32 pipes worked (0 to 1).",
        _Q.FP32_RATIO,
        is_default=False,
    ),
    _gauge(
        "PROF_PIPE_FP16_ACTIVE",
        "Share of the cycles in which FP16 pipes worked (0 to 1).",
        _Q.FP16_RATIO,
        is_default=False,
    ),
    _counter("DEV_POWER_VIOLATION", f"{_MET}power.", _Q.POWER_VIOLATION_NS_TOTAL, is_default=False),
    _counter("DEV_THERMAL_VIOLATION", f"{_MET}heat.", _Q.THERMAL_VIOLATION_NS_TOTAL, is_default=False),
    _counter("DEV_SYNC_BOOST_VIOLATION", f"{_MET}sync boost.", _Q.SYNC_BOOST_VIOLATION_NS_TOTAL, is_default=False),
    _counter(
        "DEV_BOARD_LIMIT_VIOLATION", f"{_MET}the board's limit.", _Q.BOARD_LIMIT_VIOLATION_NS_TOTAL, is_default=False
    ),
    _counter("DEV_LOW_UTIL_VIOLATION", f"{_MET}low use.", _Q.LOW_UTILIZATION_VIOLATION_NS_TOTAL, is_default=False),
    _counter("DEV_RELIABILITY_VIOLATION", f"{_MET}reliability.", _Q.RELIABILITY_VIOLATION_NS_TOTAL, is_default=False),
    _counter(
        "DEV_ECC_SBE_VOL_TOTAL",
        "Single-bit errors since the driver was loaded.",
        _Q.ECC_SINGLE_VOLATILE_TOTAL,
        is_default=False,
    ),
    _counter(
        "DEV_ECC_DBE_VOL_TOTAL",
        "Double-bit errors since the driver was loaded.",
        _Q.ECC_DOUBLE_VOLATILE_TOTAL,
        is_default=False,
    ),
    _counter(
        "DEV_ECC_SBE_AGG_TOTAL", "Single-bit errors of the GPU's life.", _Q.ECC_SINGLE_LIFETIME_TOTAL, is_default=False
    ),
    _counter(
        "DEV_ECC_DBE_AGG_TOTAL", "Double-bit errors of the GPU's life.", _Q.ECC_DOUBLE_LIFETIME_TOTAL, is_default=False
    ),
    _counter("DEV_RETIRED_SBE", "Pages retired for single-bit errors.", _Q.RETIRED_SINGLE_TOTAL, is_default=False),
    _counter("DEV_RETIRED_DBE", "Pages retired for double-bit errors.", _Q.RETIRED_DOUBLE_TOTAL, is_default=False),
    _counter("DEV_RETIRED_PENDING", "Pages that wait to be retired.", _Q.RETIRED_PENDING, is_default=False),
    _counter(
        "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLink flow-control CRC errors.",
        _Q.NVLINK_FLIT_CRC_TOTAL,
        is_default=False,
    ),
    _counter(
        "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLink data CRC errors.", _Q.NVLINK_DATA_CRC_TOTAL, is_default=False
    ),
    _counter("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink retries.", _Q.NVLINK_REPLAYS_TOTAL, is_default=False),
    _counter(
        "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink recoveries.", _Q.NVLINK_RECOVERIES_TOTAL, is_default=False
    ),
    *(
        _gauge(name, meaning, quantity, scale=WHOLE_MIB if name == "DEV_FB_TOTAL" else 1.0, is_default=False)
        for name, meaning, quantity in _CALLED
    ),
    MetricName(
        FamilyHead("DCGM_EXP_XID_ERRORS_COUNT", SampleKind.GAUGE, "Xid errors of the last five minutes, by code."),
        RECENT_XIDS,
        is_default=False,
    ),
    MetricName(
        FamilyHead(
            "DCGM_EXP_CLOCK_EVENTS_COUNT",
            SampleKind.GAUGE,
            "Readings of the last five minutes in which the clocks were throttled, by reason.",
        ),
        RECENT_CLOCK_EVENTS,
        is_default=False,
    ),
)


def _labels_of_gpu(index: int, gpu: GpuFacts) -> Pairs:
    return (
        ("gpu", str(index)),
        ("UUID", gpu.uuid),
        ("pci_bus_id", _bus_id(gpu.pci_address)),
        ("device", f"nvidia{gpu.minor}"),
        ("modelName", gpu.product_name or ""),
    )


def _labels_of_instance(partition: PartitionFacts) -> Pairs:
    return ("GPU_I_PROFILE", partition.profile), ("GPU_I_ID", str(partition.gi_id))


def _bus_id(address: str) -> str:
    """Return a PCI address as the library writes it.

    >>> _bus_id("0000:ab:00.0")
    '00000000:AB:00.0'
    """
    domain, _, rest = address.partition(":")
    return f"{domain.rjust(8, '0')}:{rest}".upper()


DCGM_NAMES = MetricNames(
    NAMES,
    gpu_labels=_labels_of_gpu,
    instance_labels=_labels_of_instance,
    fields={
        DRIVER_VERSION: lambda _, driver_version: driver_version,
        "DCGM_FI_DEV_BRAND": lambda gpu, _: (gpu.brand if isinstance(gpu, NvidiaGpu) else None) or "",
        "DCGM_FI_DEV_SERIAL": lambda gpu, _: gpu.serial or "",
        "DCGM_FI_DEV_VBIOS_VERSION": lambda gpu, _: gpu.vbios_version or "",
    },
    default_fields=(DRIVER_VERSION,),
    takes_counters_file=True,
)
