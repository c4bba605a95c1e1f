"""The `metering` section of a GPU in a profile, and the meter that reports what it says.

In: the fields of a section. Out: `SimulatedMetering`, and reports as a real vendor makes them. Every field is optional,
and what is left out is not measured, as by a GPU or a driver without it. The names are those of `metered.Quantity`;
`instances` has the values of each of the GPU's partitions by its GPU instance id, and `instance` those of all others.
The fields are described in docs/telemetry.md.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dra_driver.documents.fields import Fields
from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.metered import PROFILED, MeterPlan, MeterReport, ProcessUse, Quantity, Reading

if TYPE_CHECKING:
    from dra_driver.hardware.simulated.profile import SimulatedGpu

_PERCENT_MOST = 100.0
_EARLY_SECONDS = 0.05  # by which a thread that waits for a beat may wake before it
_PROCESSES_MOST = 1000
_NUMBER = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")

Values = Mapping[Quantity, float]


@dataclass(frozen=True, slots=True)
class MeteredProcess:
    """What one process uses, of the GPU or of one of its GPU instances."""

    use: ProcessUse
    gi_id: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedMetering:
    """What one GPU measures."""

    values: Values = field(default_factory=dict)
    instance: Values = field(default_factory=dict)
    instances: Mapping[int, Values] = field(default_factory=dict)
    processes: tuple[MeteredProcess, ...] = ()

    def of_instance(self, gi_id: int) -> Values:
        """Return the values of one GPU instance."""
        return self.instances.get(gi_id, self.instance)


NOT_METERED = SimulatedMetering()


def decode_metering(fields: Fields) -> SimulatedMetering:
    """Return what a section says."""
    values = _values(fields)
    instance = fields.section("instance")
    by_id = fields.section("instances")
    instances: dict[int, Values] = {}
    for key, _ in by_id.entries():
        row = by_id.section(key)
        if str(key).isdecimal():
            instances[int(key)] = _values(row)
        else:
            by_id.fault(key, "expected the id of a GPU instance")
        row.close()
    processes = tuple(_process(row) for row in fields.rows("processes", most=_PROCESSES_MOST))
    found = SimulatedMetering(values, _values(instance), instances, processes)
    instance.close()
    fields.close()
    return found


def _values(fields: Fields) -> Values:
    found = {one: _number(fields, one) for one in Quantity}
    return {one: value for one, value in found.items() if value is not None}


def _number(fields: Fields, key: str) -> float | None:
    """Return a number that is not negative; decimals are read from their text. None if it is not given."""
    value = fields.any(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or not _NUMBER.fullmatch(str(value)):
        fields.fault(key, f"expected a number that is not negative, got {value!r:.80}")
        return None
    return float(value)


def _process(row: Fields) -> MeteredProcess:
    use = ProcessUse(row.integer("pid", 1, 1 << 22), row.optional_integer("memoryBytes", 0, 1 << 50), _percent(row))
    found = MeteredProcess(use, row.optional_integer("gi", 0, 15))
    row.close()
    return found


def _percent(row: Fields) -> float | None:
    value = _number(row, "smPercent")
    if value is not None and value > _PERCENT_MOST:
        row.fault("smPercent", f"expected a percentage, got {value:g}")
    return value


class SimulatedMeter:
    """The meter of simulated GPUs: a round is due whenever a report is wanted a beat after the last one."""

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
