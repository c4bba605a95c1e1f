"""The meter of simulated GPUs: reports of what their profile says, as a real vendor makes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.metered import PROFILED, MeterPlan, MeterReport, Reading, Values
from dra_driver.hardware.simulated.metering_section import NOT_METERED, SimulatedMetering
from dra_driver.hardware.simulated.profile import SimulatedGpu

_EARLY_SECONDS = 0.05  # by which a thread that waits for a beat may wake before it


class SimulatedMeter:
    """The meter of simulated GPUs: a round is due if a report is asked for one period after the last round."""

    def __init__(self, plan: MeterPlan, clock: Callable[[], float] = time.time) -> None:
        self._plan, self._clock = plan, clock
        self._report = MeterReport()
        self._read_at = float("-inf")

    def report(self, facts: Facts, gpus: Mapping[str, SimulatedGpu]) -> MeterReport:
        """Return the newest readings; those of a profile in which a GPU hangs stay as they are."""
        now = self._clock()
        if now - self._read_at < self._plan.beat_s - _EARLY_SECONDS or any(gpu.health.hangs for gpu in gpus.values()):
            return self._report
        self._read_at = now
        xids, last = _xids(gpus)
        readings = (one for gpu in facts.gpus for one in self._readings(gpu, gpus[gpu.pci_address].metering, now))
        self._report = MeterReport(tuple(readings), xids, last)
        return self._report

    def _readings(self, gpu: GpuFacts, says: SimulatedMetering, now: float) -> Iterator[Reading]:
        if says is NOT_METERED:
            return
        of_all = None if gpu.mig_enabled else tuple(one.use for one in says.processes)
        yield Reading(gpu.pci_address, now, self._measured(says.values), processes=of_all)
        for gi_id in dict.fromkeys(partition.gi_id for partition in gpu.partitions):
            uses = tuple(one.use for one in says.processes if one.gi_id == gi_id)
            yield Reading(gpu.pci_address, now, self._measured(says.of_instance(gi_id)), gi_id, uses)

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
