"""The names of NVIDIA's exporter: every quantity under the name by which its dashboards know it, and its labels.

One table: name, kind, unit in the meaning, quantity, and whether it is published unless a selection is given. The names
and units are NVIDIA's, so that dashboards and rules made for them work; docs/telemetry.md shows the table.
Source: NVIDIA DCGM's field identifiers, and the fields that dcgm-exporter exports unless told otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.metered import (
    LAST_XID,
    RECENT_CLOCK_EVENTS,
    RECENT_XIDS,
    WHOLE_MIB,
    FamilyHead,
    Measure,
    MetricName,
    MetricNames,
    Pairs,
    ProcessUse,
    SampleKind,
)
from dra_driver.hardware.nvidia.calls import OptionalCalls
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault

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


# NVML's calls that measure: clocks, utilization, memory, processes, and the profiling counters (GPM).

UNKNOWN_BYTES = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_KINDS = ("Compute", "Graphics", "MPSCompute")


class MeterNvml(OptionalCalls):
    """The library calls of metering."""

    def clock_mhz(self, gpu: Handle, *, is_memory: bool) -> int | None:
        """Return the clock of the memory or of the multiprocessors in MHz."""
        kind = self._api.NVML_CLOCK_MEM if is_memory else self._api.NVML_CLOCK_SM
        return self._optional(lambda: int(self._call("nvmlDeviceGetClockInfo", gpu, kind)))

    def temperature_c(self, gpu: Handle) -> int | None:
        """Return the temperature of the GPU in degrees Celsius, by the newer call where the library has it."""
        sensor = self._api.NVML_TEMPERATURE_GPU
        for function in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"):
            found = self._optional(lambda name=function: int(self._call(name, gpu, sensor)))  # type: ignore[misc]
            if found is not None:
                return found
        return None

    def power_mw(self, gpu: Handle) -> int | None:
        """Return the power that the GPU draws in milliwatts."""
        return self._optional(lambda: int(self._call("nvmlDeviceGetPowerUsage", gpu)))

    def utilization(self, gpu: Handle) -> tuple[int, int] | None:
        """Return how many percent of the time a kernel ran, and the memory was read or written."""
        rates = self._optional(lambda: self._call("nvmlDeviceGetUtilizationRates", gpu))
        return None if rates is None else (int(rates.gpu), int(rates.memory))

    def coder_percent(self, gpu: Handle, *, is_decoder: bool) -> int | None:
        """Return how many percent of the time the decoders or the encoders were busy."""
        function = f"nvmlDeviceGet{'Decoder' if is_decoder else 'Encoder'}Utilization"
        return self._optional(lambda: int(self._call(function, gpu)[0]))

    def memory(self, device: Handle) -> tuple[int, int, int, int | None] | None:
        """Return the bytes of memory of a GPU or a MIG device: all of it, what is free, used and reserved.

        The older form of the call counts what is reserved as used, and then it is None.
        """
        info = self._optional(lambda: self._call("nvmlDeviceGetMemoryInfo", device, self._api.nvmlMemory_v2))
        if info is not None:
            return int(info.total), int(info.free), int(info.used), int(info.reserved)
        info = self._optional(lambda: self._call("nvmlDeviceGetMemoryInfo", device))
        return None if info is None else (int(info.total), int(info.free), int(info.used), None)

    def answer(self, function: str, device: Handle, *arguments: int) -> Any:
        """Return what a function answers of a device, None where it fails. Raises: NvmlFault when the GPU is lost."""
        return self._optional(lambda: self._call(function, device, *arguments))

    def process_uses(self, device: Handle) -> tuple[ProcessUse, ...] | None:
        """Return what each process uses of the memory of a GPU or a MIG device; None where that is not listed."""
        found: dict[int, int | None] = {}
        answers = 0
        for kind in _KINDS:
            function = f"nvmlDeviceGet{kind}RunningProcesses"
            rows = self._optional(lambda name=f"{function}_v3": self._call(name, device))  # type: ignore[misc]
            if rows is None:
                rows = self._optional(lambda name=f"{function}_v2": self._call(name, device))  # type: ignore[misc]
            answers += rows is not None
            for row in rows or ():
                used = row.usedGpuMemory
                found[int(row.pid)] = None if used in (None, UNKNOWN_BYTES) else int(used)
        return tuple(ProcessUse(pid, used) for pid, used in sorted(found.items())) if answers else None

    def process_percents(self, gpu: Handle, since_us: int) -> dict[int, float]:
        """Return the mean percentage of the multiprocessors' time of each process since a time of the driver's clock.

        There are none in MIG mode, where the driver does not measure it.
        """
        samples = self._optional(lambda: self._call("nvmlDeviceGetProcessUtilization", gpu, since_us)) or ()
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            if sample.pid and sample.smUtil <= 100:
                by_pid.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        return {pid: sum(found) / len(found) for pid, found in by_pid.items()}

    # -- profiling counters

    def can_profile(self, gpu: Handle) -> bool:
        """Return whether the GPU has profiling counters that this process may read (Hopper and newer)."""
        found = self._optional(lambda: self._call("nvmlGpmQueryDeviceSupport", gpu))
        return found is not None and bool(found.isSupportedDevice)

    def new_sample(self) -> Any:
        """Return a new buffer for one sample."""
        return self._call("nvmlGpmSampleAlloc")

    def free_sample(self, sample: Any) -> None:
        """Release the buffer of a sample."""
        self._call("nvmlGpmSampleFree", sample)

    def take_sample(self, gpu: Handle, gi_id: int | None, sample: Any) -> None:
        """Read the counters of a GPU, or of one of its GPU instances, into a sample."""
        if gi_id is None:
            self._call("nvmlGpmSampleGet", gpu, sample)
        else:
            self._call("nvmlGpmMigSampleGet", gpu, gi_id, sample)

    def new_comparison(self, metrics: Iterable[int]) -> Any:
        """Return the structure in which two samples are compared for these metrics (NVML_GPM_METRIC_*)."""
        made = self._api.c_nvmlGpmMetricsGet_t()
        made.version = self._api.NVML_GPM_METRICS_GET_VERSION
        for index, number in enumerate(metrics):
            made.metrics[index].metricId = number
            made.numMetrics = index + 1
        return made

    def compare(self, comparison: Any, older: Any, newer: Any) -> dict[int, float]:
        """Return those of a comparison's metrics that could be computed between two samples."""
        comparison.sample1, comparison.sample2 = older, newer
        self._call("nvmlGpmMetricsGet", comparison)
        rows = (comparison.metrics[index] for index in range(comparison.numMetrics))
        return {int(row.metricId): float(row.value) for row in rows if not row.nvmlReturn}


MIN_SECONDS = 0.1
_PERCENT, _MIB_PER_S = 0.01, float(1 << 20)
_METRICS: dict[int, tuple[Measure, float]] = {
    1: (Measure.GRAPHICS_RATIO, _PERCENT),
    2: (Measure.SM_RATIO, _PERCENT),
    3: (Measure.SM_OCCUPANCY_RATIO, _PERCENT),
    5: (Measure.TENSOR_RATIO, _PERCENT),
    10: (Measure.DRAM_RATIO, _PERCENT),
    11: (Measure.FP64_RATIO, _PERCENT),
    12: (Measure.FP32_RATIO, _PERCENT),
    13: (Measure.FP16_RATIO, _PERCENT),
    20: (Measure.PCIE_SENT_BYTES_PER_S, _MIB_PER_S),
    21: (Measure.PCIE_RECEIVED_BYTES_PER_S, _MIB_PER_S),
}
_OF_GPU_ONLY = (20, 21)


class Profiling:
    """The counters of one session's GPUs, for the one thread that makes the library calls."""

    def __init__(self, nvml: MeterNvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._clock = nvml, clock
        self._of_gpu = nvml.new_comparison(_METRICS)
        self._of_instance = nvml.new_comparison(number for number in _METRICS if number not in _OF_GPU_ONLY)
        self._last: dict[tuple[str, int | None], tuple[float, Any]] = {}
        self._spare: list[Any] = []

    def read(self, gpu: Handle, address: str, gi_id: int | None) -> dict[str, float]:
        """Return the means since the last call for the same GPU or instance; nothing at the first one.

        Raises: NvmlFault when the GPU is lost.
        """
        now, before = self._clock(), self._last.get((address, gi_id))
        if before is not None and now - before[0] < MIN_SECONDS:
            return {}
        sample = self._spare.pop() if self._spare else self._nvml.new_sample()
        try:
            self._nvml.take_sample(gpu, gi_id, sample)
            found = self._compare(before[1], sample, gi_id) if before else {}
        except NvmlFault as fault:
            self._spare.append(sample)
            if fault.is_lost:
                raise
            return {}
        self._last[address, gi_id] = now, sample
        if before is not None:
            self._spare.append(before[1])
        return found

    def keep(self, address: str, instances: Collection[int | None]) -> None:
        """Forget the samples of a GPU's instances that are gone, because their ids are used again."""
        for key in [key for key in self._last if key[0] == address and key[1] not in instances]:
            self._spare.append(self._last.pop(key)[1])

    def close(self) -> None:
        """Release all samples."""
        for sample in (*self._spare, *(sample for _, sample in self._last.values())):
            with suppress(NvmlFault):
                self._nvml.free_sample(sample)
        self._spare, self._last = [], {}

    def _compare(self, older: Any, newer: Any, gi_id: int | None) -> dict[str, float]:
        comparison = self._of_gpu if gi_id is None else self._of_instance
        found = self._nvml.compare(comparison, older, newer)
        return {_METRICS[number][0]: value * _METRICS[number][1] for number, value in found.items()}
