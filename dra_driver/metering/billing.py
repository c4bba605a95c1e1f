"""Billing: the device-hours that were allocated, busy and unclaimed, as totals that never fall and survive restarts.

In: the ledger's spans, measurements, the inventory. Out: totals by namespace, class, model and profile, and for each
model the time of GPUs that no claim had. Allocated time is the exact length of the spans, so even claims that are
shorter than the time between two turns count in full. Time in which no agent ran counts as allocated if a claim lasted
through it, and otherwise not at all.

No total ever falls: Prometheus would take that for a counter that was reset, and add its whole value once more. Only
totals and times that are already on disk are shown, times are those of the usage clock, and what a device counts is
recorded with its claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dra_driver.inventory.offering import Inventory
from dra_driver.metering.charges import Charge, UsageKey, charges_of, charges_of_text, text_of_charges, usage_key
from dra_driver.metering.measured import HolderReading
from dra_driver.metering.subjects import gpus_of
from dra_driver.plugin.ledger.spans import ClaimSpans
from dra_driver.plugin.ledger.usage.span import SettledSpan, Span, TotalKey, UsageTotal
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
LONGEST_GAP_SECONDS = 300.0  # seconds between two turns; a longer gap means that the node was suspended
_OF_CLAIMS, _UNCLAIMED = "claims", "unclaimed"
NONE = UsageTotal()


class Billing:
    """The totals of one node. Not thread-safe."""

    def __init__(self, spans: ClaimSpans, driver: str, pool: str) -> None:
        self._spans, self._driver, self._pool = spans, driver, pool
        self._charges: dict[str, tuple[Charge, ...]] = {}
        self._parts: dict[tuple[str, str], float] = {}
        self._saved: dict[TotalKey, UsageTotal] = {}
        self._pending: dict[TotalKey, UsageTotal] = {}
        self._shown: dict[TotalKey, UsageTotal] = {}
        self._ledger = ""
        self._turned_at: float | None = None

    def begin(self) -> None:
        """Load the saved totals. Raises: LedgerError."""
        self._saved, self._pending, self._turned_at, self._ledger = self._spans.totals(), {}, None, ""

    def update(self, inventory: Inventory, readings: Iterable[HolderReading]) -> tuple[float, tuple[Span, ...]]:
        """Add up what happened since the last turn; return the usage clock's time and the spans. Raises: LedgerError.

        What can't be saved now is saved by a later turn.
        """
        time, spans = self._spans.turn()
        if self._ledger not in {"", time.ledger}:  # the file was lost and made anew
            self._saved = {}
            for key, total in self._shown.items():
                self._add(key, total)
        self._ledger = time.ledger
        new = tuple(self._charged(spans, inventory))
        self._add_readings(spans, readings)
        self._add_unclaimed(inventory, spans, time.now)
        ended = [SettledSpan(span, self._allocated(span, time.now)) for span in spans if span.ended is not None]
        added, self._pending = self._spans.settle(time, self._pending, ended, new), {}
        for key, total in added.items():
            self._saved[key] = self._saved.get(key, NONE).plus(total)
        self._show([span for span in spans if span.ended is None], time.now)
        keys = {span.key for span in spans}
        self._charges = {key: found for key, found in self._charges.items() if key in keys}
        return time.now, spans

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
        return {usage_key(key): seconds for key, seconds in self._allocated(span, now).items()}

    def charge_of(self, span: Span, reading: HolderReading) -> Charge | None:
        """Return the charge of the device of a reading; None if the claim does not have the device."""
        return next((one for one in self._charges.get(span.key, ()) if _is_of(one, reading)), None)

    def _charged(self, spans: tuple[Span, ...], inventory: Inventory) -> Iterator[Span]:
        """Find out what the devices of spans count. Yield those spans for which that is not recorded yet."""
        for span in spans:
            text = span.charges or text_of_charges(charges_of(span.namespace, span.allocation, inventory))
            if not span.charges:
                yield span._replace(charges=text)
            if span.key not in self._charges:
                charges = self._charges[span.key] = charges_of_text(span.namespace, text)
                known = (one for one in charges if one.is_known)
                self._parts.update({(one.key.model, one.key.profile): one.gpu_part / one.weight for one in known})

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
            overlap = min(now, now if span.ended is None else span.ended) - max(before, span.began)
            for charge in self._charges[span.key] if overlap > 0 else ():
                free[charge.key.model] -= overlap * charge.gpu_part
        for model, seconds in free.items():
            self._add((_UNCLAIMED, model), UsageTotal(allocated=max(0.0, seconds)))

    def _show(self, current: Iterable[Span], now: float) -> None:
        shown = dict(self._saved)
        for span in current:
            for key, seconds in self._allocated(span, now).items():
                shown[key] = shown.get(key, NONE).plus(UsageTotal(allocated=seconds))
        # Sums in another order differ by rounding.
        self._shown = {key: _never_less(total, self._shown.get(key, NONE)) for key, total in shown.items()}

    def _allocated(self, span: Span, now: float) -> dict[TotalKey, float]:
        found: dict[TotalKey, float] = {}
        for charge in self._charges[span.key]:
            key = (_OF_CLAIMS, *charge.key)
            found[key] = found.get(key, 0.0) + charge.weight * span.seconds(now)
        return found

    def _add(self, key: TotalKey, more: UsageTotal) -> None:
        self._pending[key] = self._pending.get(key, NONE).plus(more)


def _is_of(charge: Charge, reading: HolderReading) -> bool:
    return charge.device == reading.holder.device and charge.share_id == reading.holder.share_id


def _never_less(total: UsageTotal, before: UsageTotal) -> UsageTotal:
    return UsageTotal(
        max(total.allocated, before.allocated), max(total.busy, before.busy), max(total.measured, before.measured)
    )
