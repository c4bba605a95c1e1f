"""Profiling: the ratios that a GPU's own counters show (GPM), of the whole GPU and of each GPU instance.

In: handles and instance ids. Out: quantities. The counters are read at every beat and compared with those of the beat
before, so the values are means over a beat. Reading them takes no lock that a profiler would need.
Source: nvml.h, NVML_GPM_METRIC_*; two samples must be 100 ms apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from dra_driver.hardware.metered import Measure
from dra_driver.hardware.nvidia.metering.calls import MeterNvml
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault

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
