"""NodeMeter: the metering of one node, while its agent has the node's role.

In: the hardware's readings, the ledger, the inventory, the kubelet's pods. Out: text for /metrics, made at every beat
and soon after a claim was prepared or unprepared. A scrape gets the text that is in memory: it asks neither a device
nor the ledger. While the hardware does not answer, the last readings are published, and their published age grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError, LedgerError, NodeError
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import ClaimName, Wire
from dra_driver.hardware.metered import (
    RECENT_CLOCK_EVENTS,
    FamilyHead,
    Measure,
    MeterPlan,
    MeterReport,
    SampleKind,
    labels_text,
    sample_line,
)
from dra_driver.hardware.port import Metered
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.devices.offering import CurrentInventory, Inventory
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord
from dra_driver.node.ledger.spans import ClaimTotals, Span, only_pod
from dra_driver.node.metering.billing import (
    Billing,
    Charge,
    Selection,
    UsageKey,
    charges_of,
    text_of_charges,
    usage_key,
    without_implausible_values,
)
from dra_driver.node.metering.holders import Holder, HolderReading, Intervals, RecentEvents, Subject, holders_of
from dra_driver.node.metering.series import (
    LabelStyle,
    MeterSnapshot,
    ReadingAges,
    claim_lines,
    gpus_of,
    lines_of,
    xid_lines,
)
from dra_driver.node.neighbours.pod_resources import ClaimUser, PodResources

# Claim tallies: what each claim used, kept for a few minutes after its end so that a scrape finds it.

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
        for reading in readings:
            if reading.holder.uid in latest:
                self._tallies[reading.holder.uid].add(reading, usage.charge_of(latest[reading.holder.uid], reading))
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
        yield from _family(ALLOCATED, self._hours((tally.labels, tally.allocated) for tally in tallies))
        yield from _family(BUSY, self._hours((tally.labels, tally.busy) for tally in tallies))
        yield from _family(MEASURED, self._hours((tally.labels, tally.measured) for tally in tallies))
        yield from _family(MEMORY, ((tally.labels, tally.memory_max) for tally in tallies))
        yield from _family(ENERGY, ((tally.labels, tally.energy_j) for tally in tallies))
        active = [tally for tally in tallies if tally.activity_count]
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


log = logging.getLogger(__name__)

# The pause after a claim was prepared or unprepared, so that a burst of calls is slowed by few renderings only.
SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class MeterSettings:
    """How a node is metered. Without `has_common_names` only this driver's own series are published."""

    style: LabelStyle
    selection: Selection
    pool: str = ""
    beat_s: float = 10.0
    with_profiling: bool = False
    has_common_names: bool = True
    repeats_gpu: bool = False
    proc: Path = Path("/proc")


class NodeMeter(AgentPart):
    """The metering of one node. Any thread may call any method."""

    def __init__(
        self,
        hardware: Metered,
        ledger: Ledger,
        kubelet: PodResources,
        *,
        settings: MeterSettings,
        inventory: CurrentInventory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hardware, self._ledger, self._kubelet = hardware, ledger, kubelet
        self._settings, self._inventory, self._clock = settings, inventory, clock
        self._loop = Loop("metering", self._turn, failure="metering failed")
        self._mutex = threading.Lock()
        self._changed_at: float | None = None
        self._records: tuple[ClaimRecord, ...] = ()
        self._users: Mapping[ClaimName, tuple[ClaimUser, ...]] = {}
        self._shared: frozenset[str] = frozenset()
        self._is_kubelet_silent = False
        ledger.keeps_spans, ledger.charges_of = True, self._charges_of
        self._intervals = Intervals(settings.beat_s, settings.proc)
        self._billing = Billing(ledger.spans, settings.style.driver, settings.pool)
        self._tallies = ClaimTallies(ledger.claim_totals, settings.pool)
        self._is_billing = False
        self._adding = threading.Lock()  # held while hours are added up, which a turn that hung may do after `stop`
        self._recent = RecentEvents()
        self._page: tuple[bytes, ReadingAges | None] = (b"", None)

    def start(self) -> None:
        """Start metering, because this instance has got the node's role."""
        selected = frozenset(name.quantity for name in self._settings.selection.names)
        if RECENT_CLOCK_EVENTS in selected:
            selected |= {Measure.CLOCK_REASONS}
        plan = MeterPlan(
            self._settings.beat_s, self._settings.with_profiling, self._loop.wake, lambda: self._shared, selected
        )
        self._hardware.begin_metering(plan)
        self._is_billing = False
        self._loop.start()

    def stop(self) -> None:
        """Stop metering; nothing is published from now on."""
        self._loop.stop(1.0)
        self._hardware.end_metering()
        with self._adding:
            self._page = (b"", None)

    def claim_prepared(self) -> None:
        """Read the claims again soon."""
        self._read_soon()

    def claim_ended(self) -> None:
        """Read the claims again soon."""
        self._read_soon()

    def _read_soon(self) -> None:
        with self._mutex:
            if self._changed_at is not None:  # the loop is waiting already for the burst of calls to end
                return
            self._changed_at = time.monotonic()
        self._loop.wake()

    def page(self) -> bytes:
        """Return the text for a scrape, from memory."""
        text, ages = self._page
        return text if ages is None else text + _joined(ages.lines(self._clock()))

    def _turn(self) -> float:
        with self._mutex:
            waits_s = 0.0 if self._changed_at is None else self._changed_at + SETTLE_SECONDS - time.monotonic()
            if waits_s > 0:
                return waits_s
            self._changed_at = None
        report = without_implausible_values(self._hardware.meter_report())
        inventory = self._inventory.current
        self._read_claims()
        holders = holders_of(self._records, inventory, self._users)
        self._shared = frozenset(gpu for (gpu, _), found in holders.items() if len(found) > 1)
        with self._adding:
            if self._loop.is_stopped:
                return self._settings.beat_s
            self._bill(inventory, report, holders)
            self._recent.update(report, self._clock())
            snapshot = self._snapshot(inventory, report, holders)
            self._page = (self._text(snapshot), ReadingAges(snapshot))
        return self._settings.beat_s

    def _snapshot(
        self, inventory: Inventory, report: MeterReport, holders: Mapping[Subject, tuple[Holder, ...]]
    ) -> MeterSnapshot:
        return MeterSnapshot(
            gpus_of(inventory),
            inventory.driver_version or "",
            report,
            holders,
            self._settings.style,
            self._settings.proc,
            self._settings.repeats_gpu,
            self._recent,
        )

    def _text(self, snapshot: MeterSnapshot) -> bytes:
        lines = list(lines_of(self._settings.selection.names, snapshot)) if self._settings.has_common_names else []
        return _joined(
            [*lines, *claim_lines(snapshot), *xid_lines(snapshot), *self._billing.lines(), *self._tallies.lines()]
        )

    def _bill(self, inventory: Inventory, report: MeterReport, holders: Mapping[Subject, tuple[Holder, ...]]) -> None:
        """Add up the hours. While the ledger can't be used, they do not change, and are added up later."""
        if inventory.waiting_for:
            return
        try:
            if not self._is_billing:
                self._billing.begin()
            readings = tuple(self._intervals.of(report.readings, holders))
            now, spans = self._billing.update(inventory, readings)
            if not self._is_billing:
                self._tallies.begin(now)
                self._is_billing = True
            self._tallies.update(spans, readings, now, self._billing)
        except LedgerError as error:
            log.warning("usage is not added up", extra=fields(code=error.code, err=str(error)))

    def _charges_of(self, namespace: str, allocation: Wire) -> str:
        """Return what a claim's devices count now, for the ledger; "" if one is not known yet."""
        try:
            charges = tuple(charges_of(namespace, allocation, self._inventory.current))
        except Exception:  # whatever is wrong, no claim waits for its hours
            log.exception("what a claim counts is not known")
            return ""
        return text_of_charges(charges) if all(charge.is_known for charge in charges) else ""

    def _read_claims(self) -> None:
        """Read the claims and the pods that have them; if that fails, keep what is known."""
        try:
            self._records = self._ledger.records()
        except DriverError as error:
            log.warning("cannot read the claims in the ledger", extra=fields(code=error.code, err=str(error)))
        if not self._records:
            self._users = {}
            return
        try:
            self._users = self._kubelet.pods().users
            self._is_kubelet_silent = False
        except NodeError as error:
            if not self._is_kubelet_silent:
                log.warning(
                    "the kubelet does not list pods, so their names are taken from claims",
                    extra=fields(code=error.code, err=str(error)),
                )
            self._is_kubelet_silent = True
            self._users = {}


def _joined(lines: Iterable[str]) -> bytes:
    # A name may contain half of a surrogate pair, which UTF-8 can't encode.
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")
