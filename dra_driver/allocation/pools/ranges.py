"""Ranges of capacity: how a request is rounded up to a step, in the integers of each Kubernetes version.

In: an amount, and the limits of a range. Out: the amount that is taken, and whether it lies on a step. Up to 1.36
everything is counted in whole units of int64, which wrap. Since 1.37 an amount that does not fit is an error, and with
DRAFractionalCapacityRange amounts are counted in thousandths where all limits allow it.

Source: Kubernetes structured allocator, roundUpRange and violateValidRange.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import Format

_MAX = 2**63 - 1
_THOUSAND = 1000


class CapacityError(Exception):
    """A request that ends the allocation: it does not fit an int64, or takes a negative amount."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a version calculates: whether an overflow is an error, and whether amounts may be thousandths."""

    checked: bool = False
    fractional: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The limits of a request policy's validRange."""

    minimum: Quantity | None
    maximum: Quantity | None
    step: Quantity | None

    def rounded(self, asked: Quantity, arithmetic: Arithmetic) -> Quantity | None:
        """Return what a request for at least the minimum takes, or None if it takes exactly the requested amount.

        Raises:
            CapacityError: The amount does not fit an int64.
        """
        if self.minimum is None or self.step is None:
            return None
        if self._counts_thousandths(arithmetic):
            return self._in_thousandths(asked)
        if arithmetic.checked and asked > Quantity(_MAX):
            raise CapacityError(f"{_UNWRITABLE}: request {asked} exceeds MaxInt64")
        start, step = whole_units(self.minimum), whole_units(self.step)
        if step == 0:
            return None
        count = _steps(_wrapped(whole_units(asked) - start), step)
        if arithmetic.checked and start >= 0 and count > (_MAX - start) // step:
            raise CapacityError(f"{_UNWRITABLE}: rounding request {asked} up to the next step passes MaxInt64")
        form = self.step.format if arithmetic.checked else Format.BINARY_SI
        return Quantity(_wrapped(start + step * count), 0, form)

    def excludes(self, taken: Quantity, arithmetic: Arithmetic) -> bool:
        """Return whether an amount is above the maximum or not on a step."""
        if self.maximum is not None and taken > self.maximum:
            return True
        if self.step is None:
            return False
        if self._counts_thousandths(arithmetic):
            amount, step = _thousandths(taken), _thousandths(self.step)
            start = _thousandths(self.minimum) if self.minimum is not None else 0
            return amount is None or not step or (amount - (start or 0)) % step != 0
        start = whole_units(self.minimum) if self.minimum is not None else 0
        step = whole_units(self.step)
        return step == 0 or _wrapped(whole_units(taken) - start) % step != 0

    def _counts_thousandths(self, arithmetic: Arithmetic) -> bool:
        limits = [limit for limit in (self.minimum, self.maximum, self.step) if limit is not None]
        if not arithmetic.fractional or any(_thousandths(limit) is None for limit in limits):
            return False
        return self.step is None or (_thousandths(self.step) or 0) >= 1

    def _in_thousandths(self, asked: Quantity) -> Quantity:
        assert self.minimum is not None  # noqa: S101
        assert self.step is not None  # noqa: S101
        amount = _thousandths(asked)
        if amount is None:
            raise CapacityError(f"{_UNWRITABLE}: request {asked} is not a representable milli value")
        start, step = _thousandths(self.minimum) or 0, _thousandths(self.step) or 1
        count = _steps(amount - start, step)
        if count > (_MAX - start) // step:
            raise CapacityError(f"{_UNWRITABLE}: rounding request {asked} up to the next step passes the milli range")
        total = start + step * count
        if total % _THOUSAND == 0:
            return Quantity(total // _THOUSAND, 0, self.step.format)
        return Quantity(total, -3, self.step.format)


_UNWRITABLE = "capacity request cannot be represented in the device's range arithmetic"


def whole_units(quantity: Quantity) -> int:
    """Return the whole units as resource.Quantity.Value does: fractions are rounded away from zero, and int64 wraps."""
    value = quantity.value
    if isinstance(value, int):
        if quantity.machine and not -_MAX - 1 <= value <= _MAX:
            return 0
        return _wrapped(value)
    whole = abs(value.numerator) // value.denominator + 1
    return _wrapped(whole if value > 0 else -whole)


def _thousandths(quantity: Quantity) -> int | None:
    """Return the amount in thousandths, or None if it is not a whole number of them or does not fit an int64."""
    amount = quantity.value * _THOUSAND
    if isinstance(amount, int) or amount.denominator == 1:
        whole = int(amount)
        return whole if -_MAX - 1 <= whole <= _MAX else None
    return None


def _steps(distance: int, step: int) -> int:
    """Divide as int64 does, towards zero, and add one if there is a remainder."""
    count = abs(distance) // abs(step) * (1 if (distance < 0) == (step < 0) else -1)
    return _wrapped(count + (distance % step != 0))


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
