"""NVML's calls, one by one: what each call of a metering round costs on the GPUs of this machine.

    python -m benchmarks --only nvml

Run it once while the GPUs are idle and once under load; `NVML_LIBRARY` names another library. It takes no lock that a
profiler needs. Without the library or a GPU it reports that and measures nothing.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from typing import Any

from benchmarks.figures import Report, percentiles
from dra_driver.hardware.metered import Measure, MeterPlan
from dra_driver.hardware.nvidia.dcgm_names import MeterNvml, Profiling
from dra_driver.hardware.nvidia.metering import read_gpu
from dra_driver.hardware.nvidia.queries import NvmlFault, load

ROUNDS = 100
PAUSE_S = 0.15  # two samples of the profiling counters must be 0.1 s apart
LIBRARY = "libnvidia-ml.so.1"


class TimedNvml(MeterNvml):
    """The calls of metering, with the seconds that each took, by function."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def _call(self, function: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return super()._call(function, *arguments)
        finally:
            self.seconds[function].append(time.perf_counter() - began)


def run(report: Report) -> None:
    """Measure the rounds of every GPU, with all telemetry and everything that a counters file can select."""
    try:
        load(os.environ.get("NVML_LIBRARY", LIBRARY))
        nvml = TimedNvml()
        nvml.init()
    except (OSError, NvmlFault) as fault:
        print(f"  no NVML here: {fault}")
        return
    try:
        _rounds(nvml, report)
    finally:
        nvml.shutdown()


def _rounds(nvml: TimedNvml, report: Report) -> None:
    gpus = [nvml.gpu(index) for index in range(nvml.count())]
    if not gpus:
        print("  no GPU here")
        return
    plan = MeterPlan(PAUSE_S, with_profiling=True, notify=lambda: None, selected=frozenset(Measure))
    profiled = [nvml.can_profile(gpu) for gpu in gpus]
    profiling = Profiling(nvml)
    nvml.seconds.clear()
    whole, cpu = [], time.process_time()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for index, gpu in enumerate(gpus):
            own = profiling if profiled[index] else None
            how: dict[str, Any] = {"profiling": own, "plan": plan, "with_processes": True, "since_us": 0}
            tuple(read_gpu(nvml, gpu, str(index), clock=time.time, **how))
        whole.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    report.add("a round of all GPUs, CPU", (time.process_time() - cpu) / ROUNDS * 1e3, "ms")
    profiling.close()
    for name, seconds in {"a round of all GPUs": whole, **nvml.seconds}.items():
        if len(seconds) > 1:
            p50, _, p99 = percentiles(seconds)
            report.add(f"{name} p50", p50, "ms")
            report.add(f"{name} p99", p99, "ms")
