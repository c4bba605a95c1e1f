"""NVML's calls that measure: clocks, utilization, memory, processes, and the profiling counters (GPM).

In: handles and instance ids. Out: plain values, None where this GPU or this library does not report one. Each method of
`MeterNvml` is one library call, or one and its older form. The profiling counters are read at every beat and compared
with those of the beat before, so the ratios are means over a beat. Reading them takes no lock that a profiler needs.
Source: nvml.h, NVML_GPM_METRIC_*, where two samples must be 100 ms apart; NVIDIA's NVML API reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from dra_driver.hardware.metered import Measure, ProcessUse
from dra_driver.hardware.nvidia.calls import OptionalCalls
from dra_driver.hardware.nvidia.queries import Handle, NvmlFault

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
