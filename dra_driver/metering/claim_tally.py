"""Claim tallies: what each claim used, kept for a few minutes after its end so that a scrape finds it.

In: spans, what was measured. Out: lines, by claim. Allocated time is that of the ledger; the rest counts since the
agent started. Claims that have ended are kept for five minutes, and no more than a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dra_driver.metering.measured import HolderReading
from dra_driver.plugin.ledger.spans import Span
from dra_driver.telemetry.exposition import FamilyHead, SampleKind, labels_text, sample_line

KEPT_SECONDS = 300.0
MOST_ENDED = 256
BOUNDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
ALLOCATED = FamilyHead("dra_claim_allocated_seconds_total", SampleKind.COUNTER, "Device-seconds of a claim.")
BUSY = FamilyHead("dra_claim_busy_seconds_total", SampleKind.COUNTER, "Seconds in which a claim's devices were busy.")
MEMORY = FamilyHead("dra_claim_memory_used_max_bytes", SampleKind.GAUGE, "Most memory that a claim used on a device.")
ENERGY = FamilyHead("dra_claim_energy_joules_total", SampleKind.COUNTER, "Energy of the GPUs that a claim had alone.")
ACTIVITY = FamilyHead(
    "dra_claim_sm_active", SampleKind.HISTOGRAM, "Share of multiprocessors at work, by readings (0 to 1)."
)


@dataclass(slots=True)
class ClaimTally:
    """What one claim used."""

    labels: str
    allocated: float = 0.0
    busy: float | None = None
    memory_max: float | None = None
    energy_j: float | None = None
    buckets: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))
    activity_sum: float = 0.0
    activity_count: int = 0
    ended: float | None = None

    def add(self, one: HolderReading) -> None:
        """Add what was measured."""
        if one.busy_ratio is not None:
            self.busy = (self.busy or 0.0) + one.busy_ratio * one.seconds
        if one.memory_bytes is not None:
            self.memory_max = max(self.memory_max or 0.0, one.memory_bytes)
        if one.energy_mj is not None:
            self.energy_j = (self.energy_j or 0.0) + one.energy_mj / 1000
        if one.sm_ratio is not None:
            self.activity_sum, self.activity_count = self.activity_sum + one.sm_ratio, self.activity_count + 1
            for index, bound in enumerate(BOUNDS):
                self.buckets[index] += one.sm_ratio <= bound


class ClaimTallies:
    """The tallies of one node. For one thread."""

    def __init__(self) -> None:
        self._tallies: dict[int, ClaimTally] = {}

    def turn(
        self,
        spans: Iterable[Span],
        readings: Iterable[HolderReading],
        now: float,
        allocated: Callable[[Span, float], float],
    ) -> None:
        """Take in what is new, and drop the claims that ended long ago."""
        by_uid = {}
        for span in spans:
            tally = self._tallies.setdefault(span.number, ClaimTally(_labels(span)))
            tally.allocated, tally.ended = allocated(span, now), span.ended
            by_uid[span.uid] = tally
        for one in readings:
            if one.holder.uid in by_uid:
                by_uid[one.holder.uid].add(one)
        ended = sorted((tally.ended, number) for number, tally in self._tallies.items() if tally.ended is not None)
        for at, number in ended[: max(0, len(ended) - MOST_ENDED)] + [e for e in ended if now - e[0] > KEPT_SECONDS]:
            del at
            self._tallies.pop(number, None)

    def lines(self) -> Iterator[str]:
        """Yield the tallies."""
        tallies = tuple(self._tallies.values())
        yield from _family(ALLOCATED, ((one.labels, one.allocated) for one in tallies))
        yield from _family(BUSY, ((one.labels, one.busy) for one in tallies))
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


def _family(head: FamilyHead, rows: Iterable[tuple[str, float | None]]) -> Iterator[str]:
    found = [sample_line(head.name, labels, round(value, 3)) for labels, value in rows if value is not None]
    if found:
        yield from head.lines()
        yield from found


def _labels(span: Span) -> str:
    names = sorted({str(name) for name in (span.allocation.get("podNames") or {}).values()})
    pairs = (
        ("namespace", span.namespace),
        ("pod", names[0] if len(names) == 1 else ""),
        ("dra_claim_name", span.name),
        ("dra_claim_namespace", span.namespace),
        ("dra_claim_uid", span.uid),
    )
    return labels_text(pairs)
