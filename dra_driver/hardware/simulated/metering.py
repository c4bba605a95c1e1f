"""The meter of simulated GPUs: reports of what their profile states, in the form of a real vendor's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.metered import PROFILED, MeterPlan, MeterReport, Reading, Values
from dra_driver.hardware.simulated.metering_section import NOT_METERED, SimulatedMetering
from dra_driver.hardware.simulated.profile import SimulatedGpu

_EARLY_SECONDS = 0.05  # a thread that waits for a beat may wake earlier by this much


class SimulatedMeter:
    """The meter of simulated GPUs: a report that is requested one period after the last round begins a new round."""

    def __init__(self, plan: MeterPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan, self._clock = plan, clock
        self._report = MeterReport()
        self._read_at = float("-inf")

    def report(self, facts: Facts, gpus: Mapping[str, SimulatedGpu]) -> MeterReport:
        """Return the newest readings; while a GPU of the profile hangs, there are no new ones."""
        now = self._clock()
        if now - self._read_at < self._plan.beat_s - _EARLY_SECONDS or any(gpu.health.hangs for gpu in gpus.values()):
            return self._report
        self._read_at = now
        xids, last = _xids(gpus)
        readings = (one for gpu in facts.gpus for one in self._readings(gpu, gpus[gpu.pci_address].metering, now))
        self._report = MeterReport(tuple(readings), xids, last)
        return self._report

    def _readings(self, gpu: GpuFacts, section: SimulatedMetering, now: float) -> Iterator[Reading]:
        if section is NOT_METERED:
            return
        of_all = None if gpu.mig_enabled else tuple(one.use for one in section.processes)
        yield Reading(gpu.pci_address, now, self._measured(section.values), processes=of_all)
        for gi_id in dict.fromkeys(partition.gi_id for partition in gpu.partitions):
            uses = tuple(one.use for one in section.processes if one.gi_id == gi_id)
            yield Reading(gpu.pci_address, now, self._measured(section.of_instance(gi_id)), gi_id, uses)

    def _measured(self, values: Values) -> Values:
        if self._plan.with_profiling:
            return values
        return {quantity: value for quantity, value in values.items() if quantity not in PROFILED}


def _xids(
    gpus: Mapping[str, SimulatedGpu],
) -> tuple[dict[tuple[str, int | None], dict[int, int]], dict[tuple[str, int | None], int]]:
    counts: dict[tuple[str, int | None], Counter[int]] = {}
    last: dict[tuple[str, int | None], int] = {}
    for address, gpu in gpus.items():
        for xid in gpu.health.xids:
            counts.setdefault((address, xid.gi_id), Counter())[xid.code] += 1
            last[address, xid.gi_id] = xid.code
    return {key: dict(found) for key, found in counts.items()}, last
