"""Plausibility: values of a reading that can't be true are left out, so that they spoil no total.

In: a reading, of any vendor. Out: the same without values that are not numbers, are negative where that is impossible,
or are beyond what any device has: libraries return the largest number for an unknown value, and counters of use may
exceed their whole by rounding. Bounds follow from the unit, with which each quantity's name ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from dra_driver.hardware.metered import MeterReport, Reading

_ROUNDING = 1.05  # how far a part may exceed its whole by rounding
_WHOLES = {"Percent": 100.0, "Ratio": 1.0}
_MAX = {"MHz": 1e5, "W": 1e5, "C": 300.0, "Bytes": float(1 << 60)}
_MIN = {"C": -100.0}
_MAX_OF_ALL = float(1 << 63)


def without_implausible_values(report: MeterReport) -> MeterReport:
    """Return a report without values that can't be true."""
    return replace(report, readings=tuple(_plausible(one) for one in report.readings))


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
