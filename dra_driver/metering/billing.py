"""Billing: the device-hours that were allocated, busy and unclaimed, as totals that never fall and survive restarts.

In: the ledger's spans, measurements, the inventory. Out: totals by namespace, class, model and profile, and for each
model the time of GPUs that no claim had. Allocated time is the exact length of the spans, so even claims that are
shorter than the time between two turns count in full. Time in which no agent ran counts as allocated if a claim lasted
through it, and otherwise not at all.

Only totals that are already on disk are shown: if a counter fell because an agent was killed, Prometheus would take it
for a counter that was reset, and add its whole value once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dra_driver.inventory.offering import Inventory
from dra_driver.metering.charges import Charge, UsageKey, charges_of
from dra_driver.metering.measured import HolderReading
from dra_driver.metering.subjects import gpus_of
from dra_driver.plugin.ledger.spans import ClaimSpans, Span, UsageTotal
from dra_driver.telemetry.exposition import FamilyHead, SampleKind, labels_text, sample_line

ALLOCATED = FamilyHead("dra_allocated_seconds_total", SampleKind.COUNTER, "Device-seconds that claims had devices.")
BUSY = FamilyHead("dra_busy_seconds_total", SampleKind.COUNTER, "Device-seconds in which devices of claims were busy.")
MEASURED = FamilyHead(
    "dra_measured_seconds_total",
    SampleKind.COUNTER,
    "Device-seconds of claims in which it was measured how busy they are.",
)
GPU_PART = FamilyHead(
    "dra_gpu_part", SampleKind.GAUGE, "Part of a GPU that a device of this model and profile takes (0 to 1)."
)
UNCLAIMED = FamilyHead("dra_unclaimed_seconds_total", SampleKind.COUNTER, "GPU-seconds that no claim had.")
SAVE_SECONDS = 60.0
LONGEST_GAP_SECONDS = 300.0  # seconds between two turns; a longer gap means that the node was suspended
_OF_CLAIMS, _UNCLAIMED = "claims", "unclaimed"
NONE = UsageTotal()


class Billing:
    """The totals of one node. Not thread-safe."""

    def __init__(self, spans: ClaimSpans, driver: str, pool: str) -> None:
        self._spans, self._driver, self._pool = spans, driver, pool
        self._charges: dict[int, tuple[Charge, ...]] = {}
        self._parts: dict[tuple[str, str], float] = {}
        self._saved: dict[tuple[str, ...], UsageTotal] = {}
        self._pending: dict[tuple[str, ...], UsageTotal] = {}
        self._shown: dict[tuple[str, ...], UsageTotal] = {}
        self._turned_at: float | None = None
        self._saved_at = self._caught_up_at = float("-inf")

    def begin(self, now: float) -> None:
        """Load the saved totals, and the claims that were prepared while nothing was metered. Raises: LedgerError."""
        self._spans.catch_up(now)
        self._saved, self._pending, self._turned_at = self._spans.totals(), {}, None
        self._caught_up_at, self._saved_at = now, float("-inf")

    def update(self, inventory: Inventory, readings: Iterable[HolderReading], now: float) -> tuple[Span, ...]:
        """Add up what happened since the last turn, and return the spans. Raises: LedgerError."""
        if not 0 <= now - self._caught_up_at < SAVE_SECONDS:  # this is also true if the clock was set back
            self._spans.catch_up(now)
            self._caught_up_at = now
        spans = self._spans.every()
        for span in spans:
            known = self._charges.get(span.number, ())
            if not known or not all(charge.is_known for charge in known):
                charges = tuple(charges_of(span.namespace, span.allocation, inventory))
                self._charges[span.number] = charges
                parts = (
                    ((one.key.model, one.key.profile), one.gpu_part / one.weight) for one in charges if one.is_known
                )
                self._parts.update(parts)
        self._add_readings(spans, readings)
        self._add_unclaimed(inventory, spans, now)
        self._settle([span for span in spans if span.ended is not None], now)
        self._show([span for span in spans if span.ended is None], now)
        numbers = {span.number for span in spans}
        self._charges = {number: found for number, found in self._charges.items() if number in numbers}
        return spans

    def save(self, now: float) -> None:
        """Save the totals that are not saved yet. Raises: LedgerError."""
        self._settle((), now, is_forced=True)

    def lines(self) -> Iterator[str]:
        """Yield the totals as lines of the text format."""
        of_claims = {UsageKey(*key[1:]): total for key, total in sorted(self._shown.items()) if key[0] == _OF_CLAIMS}
        measured = {key: total for key, total in of_claims.items() if total.measured}
        of_driver = ("dra_driver_name", self._driver)
        for head, rows in (
            (ALLOCATED, {key: total.allocated for key, total in of_claims.items()}),
            (BUSY, {key: total.busy for key, total in measured.items()}),
            (MEASURED, {key: total.measured for key, total in measured.items()}),
        ):
            if rows:
                yield from head.lines()
                yield from (
                    sample_line(head.name, labels_text((*zip(UsageKey._fields, k, strict=True), of_driver)), v)
                    for k, v in rows.items()
                )
        if self._parts:
            yield from GPU_PART.lines()
        for (model, profile), part in sorted(self._parts.items()):
            labels = labels_text((("model", model), ("profile", profile)))
            yield sample_line(GPU_PART.name, labels, round(part, 6))
        free = {key[1]: total.allocated for key, total in sorted(self._shown.items()) if key[0] == _UNCLAIMED}
        if free:
            yield from UNCLAIMED.lines()
        for model, seconds in free.items():
            labels = labels_text((("dra_pool_name", self._pool), ("model", model)))
            yield sample_line(UNCLAIMED.name, labels, round(seconds, 3))

    def allocated_of(self, span: Span, now: float) -> dict[UsageKey, float]:
        """Return the device-seconds of a claim so far, by kind of device."""
        found: dict[UsageKey, float] = {}
        for key, seconds in self._allocated(span, now):
            usage = UsageKey(*key[1:])
            found[usage] = found.get(usage, 0.0) + seconds
        return found

    def charge_of(self, span: Span, reading: HolderReading) -> Charge | None:
        """Return the charge of the device of a reading; None if the claim does not have the device."""
        return next((one for one in self._charges.get(span.number, ()) if _is_of(one, reading)), None)

    def _add_readings(self, spans: tuple[Span, ...], readings: Iterable[HolderReading]) -> None:
        by_uid = {span.uid: span for span in spans if span.ended is None}
        for one in readings:
            span = by_uid.get(one.holder.uid)
            if span is None or one.busy_ratio is None:
                continue
            charge = self.charge_of(span, one)
            if charge is not None:
                busy = min(charge.weight, one.busy_ratio) * one.seconds
                self._add((_OF_CLAIMS, *charge.key), UsageTotal(0.0, busy, charge.weight * one.seconds))

    def _add_unclaimed(self, inventory: Inventory, spans: tuple[Span, ...], now: float) -> None:
        before, self._turned_at = self._turned_at, now
        if before is None or not 0 < now - before <= LONGEST_GAP_SECONDS:
            return
        free: dict[str, float] = defaultdict(float)
        for gpu in {one.pci_address: one for one in gpus_of(inventory)}.values():  # one for all parts of a divided GPU
            free[gpu.product_name or ""] += now - before
        for span in spans:
            overlap = min(now, span.ended or now) - max(before, span.began)
            for charge in self._charges[span.number] if overlap > 0 else ():
                free[charge.key.model] -= overlap * charge.gpu_part
        for model, seconds in free.items():
            self._add((_UNCLAIMED, model), UsageTotal(allocated=max(0.0, seconds)))

    def _settle(self, ended: Iterable[Span], now: float, *, is_forced: bool = False) -> None:
        more = dict(self._pending)
        numbers = []
        for span in ended:
            numbers.append(span.number)
            for key, seconds in self._allocated(span, now):
                more[key] = more.get(key, NONE).plus(UsageTotal(allocated=seconds))
        if not numbers and not (more and (is_forced or not 0 <= now - self._saved_at < SAVE_SECONDS)):
            return
        self._spans.add(more, numbers)
        for key, total in more.items():
            self._saved[key] = self._saved.get(key, NONE).plus(total)
        self._pending, self._saved_at = {}, now

    def _show(self, current: Iterable[Span], now: float) -> None:
        shown = dict(self._saved)
        for span in current:
            for key, seconds in self._allocated(span, now):
                shown[key] = shown.get(key, NONE).plus(UsageTotal(allocated=seconds))
        self._shown = {key: _never_less(total, self._shown.get(key, NONE)) for key, total in shown.items()}

    def _allocated(self, span: Span, now: float) -> Iterator[tuple[tuple[str, ...], float]]:
        seconds = max(0.0, (span.ended or now) - span.began)
        for charge in self._charges.get(span.number, ()):
            yield (_OF_CLAIMS, *charge.key), charge.weight * seconds

    def _add(self, key: tuple[str, ...], more: UsageTotal) -> None:
        self._pending[key] = self._pending.get(key, NONE).plus(more)


def _is_of(charge: Charge, reading: HolderReading) -> bool:
    return charge.device == reading.holder.device and charge.share_id == reading.holder.share_id


def _never_less(total: UsageTotal, before: UsageTotal) -> UsageTotal:
    """Return a total with no part below the one shown before, even if a clock was set back or a share resized."""
    return UsageTotal(
        max(total.allocated, before.allocated), max(total.busy, before.busy), max(total.measured, before.measured)
    )
