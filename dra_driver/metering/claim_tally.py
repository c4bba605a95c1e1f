"""Claim tallies: what each claim used, kept for a few minutes after its end so that a scrape finds it.

In: spans, measurements. Out: lines, by claim. The allocated time comes from the ledger; the other values count from the
agent's start. A claim that is prepared again goes on from the hours that it had. Claims that have ended are kept for
five minutes, up to a limited number, and also by an agent that has started since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver.metering.charges import Charge, UsageKey, usage_key
from dra_driver.metering.measured import HolderReading
from dra_driver.plugin.ledger.usage.claim_totals import ClaimTotals, only_pod
from dra_driver.plugin.ledger.usage.span import Span
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
    settled: dict[UsageKey, float] = field(default_factory=dict)  # of spans that have ended
    allocated: Mapping[UsageKey, float] = field(default_factory=dict)
    busy: dict[UsageKey, float] = field(default_factory=dict)
    measured: dict[UsageKey, float] = field(default_factory=dict)
    memory_max: float | None = None
    energy_j: float | None = None
    buckets: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))
    activity_sum: float = 0.0
    activity_count: int = 0
    ended: float | None = None

    def show(self, more: Mapping[UsageKey, float]) -> None:
        """Show the hours of the spans that have ended, and `more` of one that has not."""
        self.allocated = {key: self.settled.get(key, 0.0) + more.get(key, 0.0) for key in {**self.settled, **more}}

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

    def __init__(self, totals: ClaimTotals, pool: str) -> None:
        self._totals, self._pool = totals, pool
        self._tallies: dict[str, ClaimTally] = {}

    def begin(self, now: float) -> None:
        """Load the claims that have ended lately, while another agent metered this node. Raises: LedgerError."""
        for total in self._totals.ended_since(now - KEPT_SECONDS):
            if total.uid not in self._tallies:
                labels = _labels(total.namespace, total.name, total.uid, total.pod)
                self._tallies[total.uid] = ClaimTally(labels, ended=total.ended)
            self._load_settled(total.uid)

    def update(self, spans: Sequence[Span], readings: Iterable[HolderReading], now: float, usage: UsageOfSpans) -> None:
        """Add new measurements, and drop the claims that ended long ago. Raises: LedgerError."""
        latest = {span.uid: span for span in spans}
        is_new = {uid for uid in latest if uid not in self._tallies}
        for uid, span in latest.items():
            labels = _labels(span.namespace, span.name, uid, only_pod(span.allocation))
            self._tallies.setdefault(uid, ClaimTally(labels)).labels = labels
        for uid in is_new.union(span.uid for span in spans if span.ended is not None):
            self._load_settled(uid)
        for uid, tally in self._tallies.items():
            if uid in latest:
                tally.show(usage.allocated_of(latest[uid], now) if latest[uid].ended is None else {})
                tally.ended = latest[uid].ended
            elif tally.ended is None:  # another agent has settled its span
                self._load_settled(uid)
                tally.ended = now
        for one in readings:
            if one.holder.uid in latest:
                self._tallies[one.holder.uid].add(one, usage.charge_of(latest[one.holder.uid], one))
        self._drop_ended(now)

    def _load_settled(self, uid: str) -> None:
        tally = self._tallies[uid]
        tally.settled = {usage_key(total.key): total.allocated for total in self._totals.of_claim(uid)}
        tally.show({})

    def _drop_ended(self, now: float) -> None:
        ended = sorted((tally.ended, uid) for uid, tally in self._tallies.items() if tally.ended is not None)
        for _, uid in ended[: max(0, len(ended) - MAX_ENDED)] + [e for e in ended if now - e[0] > KEPT_SECONDS]:
            self._tallies.pop(uid, None)

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


def _labels(namespace: str, name: str, uid: str, pod: str) -> str:
    pairs = (
        ("namespace", namespace),
        ("pod", pod),
        ("dra_claim_name", name),
        ("dra_claim_namespace", namespace),
        ("dra_claim_uid", uid),
    )
    return labels_text(pairs)
