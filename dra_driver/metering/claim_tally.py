"""Claim tallies: what each claim used, kept for a few minutes after its end so that a scrape finds it.

In: spans, measurements. Out: lines, by claim. The allocated time comes from the ledger; the other values count from the
agent's start. Claims that have ended are kept for five minutes, up to a limited number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver.claims.allocated.records import pod_names_of_record
from dra_driver.metering.charges import Charge, UsageKey
from dra_driver.metering.measured import HolderReading
from dra_driver.plugin.ledger.spans import Span
from dra_driver.telemetry.exposition import FamilyHead, SampleKind, labels_text, sample_line

KEPT_SECONDS = 300.0
MAX_ENDED = 256
BOUNDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
ALLOCATED = FamilyHead("dra_claim_allocated_seconds_total", SampleKind.COUNTER, "Device-seconds of a claim.")
BUSY = FamilyHead(
    "dra_claim_busy_seconds_total", SampleKind.COUNTER, "Device-seconds in which a claim's devices were busy."
)
MEASURED = FamilyHead(
    "dra_claim_measured_seconds_total",
    SampleKind.COUNTER,
    "Device-seconds of a claim in which it was measured how busy its devices are.",
)
MEMORY = FamilyHead("dra_claim_memory_used_max_bytes", SampleKind.GAUGE, "Most memory that a claim used on a device.")
ENERGY = FamilyHead("dra_claim_energy_joules_total", SampleKind.COUNTER, "Energy of the GPUs that a claim had alone.")
ACTIVITY = FamilyHead(
    "dra_claim_sm_active", SampleKind.HISTOGRAM, "Share of multiprocessors at work, by readings (0 to 1)."
)


class UsageOfSpans(Protocol):
    """Returns the use of the devices of a claim."""

    def allocated_of(self, span: Span, now: float) -> Mapping[UsageKey, float]:
        """Return the device-seconds of a claim so far, by kind of device."""

    def charge_of(self, span: Span, reading: HolderReading) -> Charge | None:
        """Return the charge of the device of a reading; None if the claim does not have the device."""


@dataclass(slots=True)
class ClaimTally:
    """The use of one claim, and its hours by kind of device."""

    labels: str
    allocated: Mapping[UsageKey, float] = field(default_factory=dict)
    busy: dict[UsageKey, float] = field(default_factory=dict)
    measured: dict[UsageKey, float] = field(default_factory=dict)
    memory_max: float | None = None
    energy_j: float | None = None
    buckets: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))
    activity_sum: float = 0.0
    activity_count: int = 0
    ended: float | None = None

    def add(self, one: HolderReading, charge: Charge | None) -> None:
        """Add the measurements of one device; `charge` is that device's charge."""
        if one.busy_ratio is not None and charge is not None:
            key, busy = charge.key, min(charge.weight, one.busy_ratio)
            self.busy[key] = self.busy.get(key, 0.0) + busy * one.seconds
            self.measured[key] = self.measured.get(key, 0.0) + charge.weight * one.seconds
        if one.memory_bytes is not None:
            self.memory_max = max(self.memory_max or 0.0, one.memory_bytes)
        if one.energy_mj is not None:
            self.energy_j = (self.energy_j or 0.0) + one.energy_mj / 1000
        if one.sm_ratio is not None:
            self.activity_sum, self.activity_count = self.activity_sum + one.sm_ratio, self.activity_count + 1
            for index, bound in enumerate(BOUNDS):
                self.buckets[index] += one.sm_ratio <= bound


class ClaimTallies:
    """The tallies of one node. Not thread-safe."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._tallies: dict[int, ClaimTally] = {}

    def update(self, spans: Iterable[Span], readings: Iterable[HolderReading], now: float, usage: UsageOfSpans) -> None:
        """Add new measurements, and drop the claims that ended long ago."""
        by_uid = {}
        for span in spans:
            tally = self._tallies.get(span.number)
            if tally is None:
                tally = self._tallies[span.number] = ClaimTally(_labels(span))
            tally.allocated, tally.ended = usage.allocated_of(span, now), span.ended
            by_uid[span.uid] = tally, span
        for one in readings:
            if one.holder.uid in by_uid:
                tally, span = by_uid[one.holder.uid]
                tally.add(one, usage.charge_of(span, one))
        ended = sorted((tally.ended, number) for number, tally in self._tallies.items() if tally.ended is not None)
        for _, number in ended[: max(0, len(ended) - MAX_ENDED)] + [e for e in ended if now - e[0] > KEPT_SECONDS]:
            self._tallies.pop(number, None)

    def lines(self) -> Iterator[str]:
        """Yield the tallies as lines of the text format."""
        tallies = tuple(self._tallies.values())
        yield from _family(ALLOCATED, self._hours((one.labels, one.allocated) for one in tallies))
        yield from _family(BUSY, self._hours((one.labels, one.busy) for one in tallies))
        yield from _family(MEASURED, self._hours((one.labels, one.measured) for one in tallies))
        yield from _family(MEMORY, ((one.labels, one.memory_max) for one in tallies))
        yield from _family(ENERGY, ((one.labels, one.energy_j) for one in tallies))
        active = [one for one in tallies if one.activity_count]
        if active:
            yield from ACTIVITY.lines()
        for one in active:
            for bound, count in zip((*BOUNDS, "+Inf"), (*one.buckets, one.activity_count), strict=True):
                yield sample_line(f"{ACTIVITY.name}_bucket", f'{one.labels},le="{bound}"', float(count))
            yield sample_line(f"{ACTIVITY.name}_sum", one.labels, round(one.activity_sum, 6))
            yield sample_line(f"{ACTIVITY.name}_count", one.labels, float(one.activity_count))

    def _hours(self, rows: Iterable[tuple[str, Mapping[UsageKey, float]]]) -> Iterator[tuple[str, float]]:
        """Yield a row for each kind of device that a claim has; nearly all claims have one kind, and the same one."""
        texts: dict[UsageKey, str] = {}
        for labels, hours in rows:
            for key, seconds in hours.items():
                if key not in texts:
                    pairs = zip(UsageKey._fields[1:], key[1:], strict=True)
                    texts[key] = labels_text((*pairs, ("dra_pool_name", self._pool)))
                yield f"{labels},{texts[key]}", seconds


def _family(head: FamilyHead, rows: Iterable[tuple[str, float | None]]) -> Iterator[str]:
    found = [sample_line(head.name, labels, round(value, 3)) for labels, value in rows if value is not None]
    if found:
        yield from head.lines()
        yield from found


def _labels(span: Span) -> str:
    names = sorted({name for _, name in pod_names_of_record(span.allocation)})
    pairs = (
        ("namespace", span.namespace),
        ("pod", names[0] if len(names) == 1 else ""),
        ("dra_claim_name", span.name),
        ("dra_claim_namespace", span.namespace),
        ("dra_claim_uid", span.uid),
    )
    return labels_text(pairs)
