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

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dra_driver.base.errors import InputError
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import Wire, json_text
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.metered import (
    FamilyHead,
    MeterReport,
    MetricName,
    MetricNames,
    Reading,
    SampleKind,
    labels_text,
    sample_line,
)
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.ledger.record import devices_of_record
from dra_driver.node.ledger.spans import ClaimSpans, SettledSpan, Span, TotalKey, UsageTotal
from dra_driver.node.metering.holders import HolderReading
from dra_driver.node.metering.series import gpus_of

# Charges: how much each device of a claim counts, in hours of devices and of GPUs.

WHOLE = "gpu"  # the profile of a device that is not a partition


class UsageKey(NamedTuple):
    """The key under which hours are added up."""

    namespace: str
    device_class: str
    model: str
    profile: str


def usage_key(key: tuple[str, ...]) -> UsageKey:
    """Return the key of a total of claims without what it is a total of."""
    return UsageKey(*key[1:])


class Charge(NamedTuple):
    """How much one device of a claim counts. A device that the inventory lacks is unknown, and counts as a whole."""

    key: UsageKey
    device: str
    share_id: str
    weight: float = 1.0
    gpu_part: float = 1.0
    is_known: bool = False


def charges_of(namespace: str, allocation: Wire, inventory: Inventory) -> Iterator[Charge]:
    """Yield the charge of each device that a claim has; devices with admin access are not charged."""
    for held in devices_of_record(allocation):
        if held.is_admin:
            continue
        name, share_id, device_class = held.device, held.share_id or "", held.device_class
        device = inventory.find(name, share_id)
        if device is None:
            yield Charge(UsageKey(namespace, device_class, "", ""), name, share_id)
            continue
        weight = _weight(device, dict(held.consumed), inventory)
        key = UsageKey(namespace, device_class, device.gpu.product_name or "", _profile(device))
        yield Charge(key, name, share_id, weight, weight * _gpu_part(device, inventory), is_known=True)


def text_of_charges(charges: Iterable[Charge]) -> str:
    """Return charges as they are recorded; the namespace is that of the claim."""
    return json_text([[*charge.key[1:], *charge[1:]] for charge in charges])


def charges_of_text(namespace: str, text: str) -> tuple[Charge, ...]:
    """Return charges that were recorded; fields that a newer agent added are ignored."""
    return tuple(
        Charge(UsageKey(namespace, device_class, model, profile), *more[: len(Charge._fields) - 1])
        for device_class, model, profile, *more in json.loads(text)
    )


def _profile(device: Device) -> str:
    profile = device.gpu.part.rpartition("-")[0] if device.gpu.part_number is not None else WHOLE
    if device.partition is not None:
        profile = device.partition.profile
    elif device.placement is not None:
        profile = device.placement.profile.name
    return f"{profile}-share" if device.share is not None else profile


def _weight(device: Device, consumed: Mapping[str, Any], inventory: Inventory) -> float:
    """Return the part of its device that a share takes: the largest of its parts of the device's capacities."""
    if device.share is None:
        return 1.0
    if device.share.index is not None:
        siblings = {
            one.name for one in inventory.by_name.values() if one.share and one.share.parent == device.share.parent
        }
        return 1.0 / max(1, len(siblings - {device.share.parent}))
    parts = [_part(amount, device.capacity.get(name.rpartition("/")[2], 0)) for name, amount in consumed.items()]
    return min(1.0, max(parts, default=1.0)) or 1.0


def _part(amount: Any, capacity: int) -> float:
    try:
        return float(Quantity.parse(str(amount)).value) / capacity if capacity else 0.0
    except QuantityError:
        return 0.0


def _gpu_part(device: Device, inventory: Inventory) -> float:
    """Return the part of its GPU that a device takes: the larger of its parts of memory slices and compute slices.

    The parts of a GPU that the hardware itself divides are equal.
    """
    if device.gpu.part_number is not None:
        address = device.gpu.pci_address
        siblings = {one.gpu.part_number for one in inventory.by_name.values() if one.gpu.pci_address == address}
        return 1.0 / max(1, len(siblings - {None}))
    if device.placement is not None:
        return _of_slices(device.gpu, device.placement.profile.gi_profile_id, device.placement.profile.memory_bytes)
    if device.partition is not None:
        return _of_slices(device.gpu, device.partition.gi_profile_id, device.partition.memory_bytes)
    return 1.0


def _of_slices(gpu: GpuFacts, profile_id: int, memory_bytes: int) -> float:
    profile = next((one for one in gpu.mig_profiles if one.gi_profile_id == profile_id), None)
    if profile is None:
        return min(1.0, memory_bytes / gpu.memory_bytes) if gpu.memory_bytes else 1.0
    memory = profile.size / max(one.size for one in gpu.mig_profiles)
    return max(memory, profile.slices / max(one.slices for one in gpu.mig_profiles))


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
                known = (charge for charge in charges if charge.is_known)
                self._parts.update({(one.key.model, one.key.profile): one.gpu_part / one.weight for one in known})

    def _add_readings(self, spans: tuple[Span, ...], readings: Iterable[HolderReading]) -> None:
        by_uid = {span.uid: span for span in spans if span.ended is None}
        for reading in readings:
            span = by_uid.get(reading.holder.uid)
            if span is None or reading.busy_ratio is None:
                continue
            charge = self.charge_of(span, reading)
            if charge is not None:
                busy = min(charge.weight, reading.busy_ratio) * reading.seconds
                self._add((_OF_CLAIMS, *charge.key), UsageTotal(0.0, busy, charge.weight * reading.seconds))

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


# Selection: which of a vendor's names are published, from a counters file of the common exporter.

MAX_BYTES = 1 << 20
_LABEL = "label"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is published: names, and the fields that are labels of every series."""

    names: tuple[MetricName, ...]
    labels: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def default_selection(known: MetricNames, *, has_former: bool = False) -> Selection:
    """Return the names and labels of a vendor that are published if no counters file is given.

    With `has_former`, the names that the vendor's exporter had in earlier releases are among them.
    """
    names = (name for name in known.names if name.is_default and (has_former or not name.is_former))
    return Selection(tuple(names), known.default_fields)


def read_selection(path: Path, known: MetricNames) -> Selection:
    """Return what a counters file selects of a vendor's names.

    Raises: InputError("input.counters") for a file that can't be read, or a line that is not valid.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError("counters", f"the counters file {path} can't be read: {fault}") from fault
    if len(content) > MAX_BYTES:
        raise InputError("counters", f"the counters file {path} has more than {MAX_BYTES} bytes")
    by_name = {one.head.name: one for one in known.names}
    names: dict[str, MetricName] = {}
    labels: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for name, kind, meaning in _rows(path, text):
        if kind == _LABEL and name in known.fields:
            labels[name] = None
        elif name in by_name and kind in (SampleKind.GAUGE, SampleKind.COUNTER):
            names[name] = replace(by_name[name], head=FamilyHead(name, SampleKind(kind), meaning))
        else:
            unknown[name] = None
    return Selection(tuple(names.values()), tuple(labels), tuple(unknown))


def _rows(path: Path, text: str) -> Iterator[tuple[str, str, str]]:
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip(", ") or line.startswith("#"):
            continue
        fields = [field.strip() for field in next(csv.reader([line], skipinitialspace=True))]
        if len(fields) < 3 or fields[1] not in (*SampleKind, _LABEL, "summary"):
            raise InputError(
                "counters",
                f"{path}, line {number}: expected a field, a type and a meaning, got {line[:100]!r}",
                hint="for example: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).",
            )
        yield fields[0], fields[1], ", ".join(fields[2:])


# Plausibility: values of a reading that can't be true are left out, so that they spoil no total.

_ROUNDING = 1.05  # how far a part may exceed its whole by rounding
_WHOLES = {"Percent": 100.0, "Ratio": 1.0}
_MAX = {"MHz": 1e5, "W": 1e5, "C": 300.0, "Bytes": float(1 << 60)}
_MIN = {"C": -100.0}
_MAX_OF_ALL = float(1 << 63)


def without_implausible_values(report: MeterReport) -> MeterReport:
    """Return a report without values that can't be true."""
    return replace(report, readings=tuple(_plausible(reading) for reading in report.readings))


def _plausible(reading: Reading) -> Reading:
    values = {}
    for quantity, value in reading.values.items():
        kept = _kept(quantity, value)
        if kept is not None:
            values[quantity] = kept
    return replace(reading, values=values)


def _kept(quantity: str, value: float) -> float | None:
    whole = _of_unit(quantity, _WHOLES.items())
    if whole is not None:
        # This comparison is false for NaN, too.
        return min(value, whole) if 0 <= value <= whole * _ROUNDING else None
    minimum = _of_unit(quantity, _MIN.items()) or 0.0
    maximum = _of_unit(quantity, _MAX.items()) or _MAX_OF_ALL
    return value if math.isfinite(value) and minimum <= value < maximum else None


def _of_unit(quantity: str, bounds: Iterable[tuple[str, float]]) -> float | None:
    return next((bound for unit, bound in bounds if quantity.endswith(unit)), None)
