"""Meter: the measurements from `begin_metering` until `end_metering`, and the rounds in which they are taken.

The rounds run in the thread of the session's watch, so that the library is open only once, with at most one more user.
A report contains what is in memory: a library call that hangs makes the readings old, but delays no caller.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from dra_driver.hardware.metered import MeterPlan, MeterReport, Reading
from dra_driver.hardware.nvidia.metering.calls import MeterNvml
from dra_driver.hardware.nvidia.metering.profiling import Profiling
from dra_driver.hardware.nvidia.metering.reading import read_gpu
from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault


class NvidiaMeter:
    """The newest readings. Any thread may call any method."""

    def __init__(self, plan: MeterPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan, self.clock = plan, clock
        self._mutex = threading.Lock()
        self._readings: dict[str, tuple[Reading, ...]] = {}
        self._xids: dict[tuple[str, int | None], Counter[int]] = {}
        self._last: dict[tuple[str, int | None], int] = {}

    def report(self) -> MeterReport:
        """Return what is known now."""
        with self._mutex:
            readings = tuple(one for found in self._readings.values() for one in found)
            return MeterReport(readings, {key: dict(found) for key, found in self._xids.items()}, dict(self._last))

    def take(self, address: str, readings: tuple[Reading, ...]) -> None:
        """Replace the readings of a GPU and its instances."""
        with self._mutex:
            self._readings[address] = readings

    def keep(self, addresses: Collection[str]) -> None:
        """Forget the GPUs that are no longer here."""
        with self._mutex:
            self._readings = {gpu: found for gpu, found in self._readings.items() if gpu in addresses}

    def count_xid(self, address: str, gi_id: int | None, code: int) -> None:
        """Count an Xid."""
        with self._mutex:
            self._xids.setdefault((address, gi_id), Counter())[code] += 1
            self._last[address, gi_id] = code


class MeterRounds:
    """The rounds of one session, for the one thread that makes the library calls. `gpus` are handles by PCI address."""

    def __init__(self, meter: NvidiaMeter, mark: Callable[[str], None], gpus: Mapping[str, Handle]) -> None:
        self.meter, self._gpus = meter, gpus
        self._nvml = MeterNvml(mark)
        self._profiling: Profiling | None = None
        self._profiled: frozenset[str] = frozenset()
        self._due = 0.0
        self._read_at_us = 0
        meter.keep(gpus)
        if meter.plan.with_profiling:
            self._begin_profiling()

    def run(self) -> None:
        """Read all GPUs if a round is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.meter.plan.beat_s
        shared, since_us = self.meter.plan.shared_gpus(), self._read_at_us
        self._read_at_us = int(time.time() * 1e6)
        for address, gpu in self._gpus.items():
            self._read(address, gpu, since_us, with_processes=address in shared)
        self.meter.plan.notify()

    def close(self) -> None:
        """Release the samples that profiling has allocated in the library."""
        if self._profiling is not None:
            self._profiling.close()

    def _begin_profiling(self) -> None:
        try:
            self._profiled = frozenset(address for address, gpu in self._gpus.items() if self._nvml.can_profile(gpu))
        except NvmlFault:  # a GPU is lost: the next session asks again
            self._profiled = frozenset()
        if self._profiled:
            self._profiling = Profiling(self._nvml)

    def _read(self, address: str, gpu: Handle, since_us: int, *, with_processes: bool) -> None:
        profiling = self._profiling if address in self._profiled else None
        try:
            found = tuple(
                read_gpu(
                    self._nvml,
                    gpu,
                    address,
                    profiling=profiling,
                    plan=self.meter.plan,
                    with_processes=with_processes,
                    since_us=since_us,
                    clock=self.meter.clock,
                )
            )
        except NvmlFault:  # it is lost: its last readings grow old
            return
        self.meter.take(address, found)
