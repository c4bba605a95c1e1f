"""Kubernetes quantities ("40Gi", "1500m", "1e3") as exact numbers.

In: the text of a quantity as it appears in an object. Out: an immutable `Quantity` that compares exactly, adds, and
prints itself in the canonical form. Floating point never decides anything, and no input makes it slow: a number is kept
as `unscaled * 10**scale`, so "1e999999999" costs nothing until a caller asks for all its digits.

Source: Kubernetes API machinery, resource.Quantity (parsing, canonical form, int64 fast path).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import TYPE_CHECKING

from dra_driver.base.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction


# How quantities are written: their suffixes, and the canonical forms of numbers.

INT64_MAX = 2**63 - 1
MAX_DIGITS = 4096  # numbers with exponents above this are compared but never written out
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES = {0: "", **{bits // 10: suffix for suffix, bits in _BINARY_SUFFIXES.items()}}
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+")


class QuantityError(InputError):
    """The text is not a Kubernetes quantity, or the number can't be written out."""

    branch = "input.quantity"


class Format(enum.Enum):
    """The family of suffixes that a quantity was written in; it decides the canonical form."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


def strip_zeros(unscaled: int, scale: int) -> tuple[int, int]:
    """Return the same number with as few digits as possible."""
    if unscaled == 0:
        return 0, 0
    while unscaled % 10 == 0:
        unscaled //= 10
        scale += 1
    return unscaled, scale


def binary_form(whole: int) -> str:
    """Return a whole number with the largest binary suffix that loses nothing."""
    power = 0
    if whole == -INT64_MAX - 1:
        return str(whole)  # the server's own sign change of this number overflows, and finds no factors
    while whole % 1024 == 0 and power < 6:
        whole //= 1024
        power += 1
    return f"{whole}{_BINARY_NAMES[power]}"


def decimal_form(unscaled: int, scale: int, form: Format) -> str:
    """Return a number with a decimal suffix or an exponent."""
    unscaled, scale = strip_zeros(unscaled, scale)
    unscaled, scale = unscaled * 10 ** (scale % 3), scale - scale % 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{unscaled}e{scale}" if scale else str(unscaled)
    if scale > 18:
        if scale > MAX_DIGITS:
            return f"{unscaled}e{scale}"
        unscaled, scale = unscaled * 10 ** (scale - 18), 18
    return f"{unscaled}{_DECIMAL_NAMES[scale]}"


def interpret(suffix: str) -> tuple[int, int, Format]:
    """Return (base, exponent, format) of a suffix."""
    if suffix in _DECIMAL_SUFFIXES:
        return 10, _DECIMAL_SUFFIXES[suffix], Format.DECIMAL_SI
    if suffix in _BINARY_SUFFIXES:
        return 2, _BINARY_SUFFIXES[suffix], Format.BINARY_SI
    if _EXPONENT.fullmatch(suffix) and len(suffix) < 21 and -INT64_MAX - 1 <= int(suffix[1:]) <= INT64_MAX:
        wrapped = (int(suffix[1:]) + 2**31) % 2**32 - 2**31  # the server keeps only 32 bits of the exponent
        return 10, wrapped, Format.DECIMAL_EXPONENT
    raise QuantityError("suffix", "unable to parse quantity's suffix")


_NANO = -9
_FAST_DIGITS = 18  # this many decimal digits always fit an int64
_INTERNED = 64  # texts up to this length are parsed once and shared
_MIB, _MAX_READABLE = 1 << 20, 1 << 60

# The quantifiers are possessive throughout, so that a hostile text fails after one pass.
_SHAPE = re.compile(
    r"(?P<sign>[+-]?+)0*+(?P<num>[0-9]*+)(?:\.(?P<denom>[0-9]*+))?(?P<suffix>[eEinumkKMGTP]*+[+-]?+[0-9]*+)"
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact number, `unscaled * 10**scale`, with the format it prints in.

    `machine` is true while Kubernetes holds the number as an int64 with a scale; only such quantities with `scale >= 0`
    count as integers in CEL. Equality and order depend on the value alone.
    """

    unscaled: int
    scale: int = 0
    format: Format = Format.DECIMAL_SI
    machine: bool = True

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read a quantity as the API server does.

        Raises:
            QuantityError: The text is not a quantity.

        Source: apimachinery resource.ParseQuantity.
        """
        return _parse(text) if len(text) <= _INTERNED else _parse.__wrapped__(text)

    @classmethod
    def of(cls, value: int, *, binary: bool = False) -> Quantity:
        """Return the quantity of a whole number, with binary suffixes when printed if requested."""
        return cls(value, 0, Format.BINARY_SI if binary else Format.DECIMAL_SI)

    @property
    def value(self) -> int | Fraction:
        """Return the exact value: an int if it is whole, else a Fraction.

        Raises:
            QuantityError: The number has too many digits to write out.
        """
        if self.scale >= 0:
            if self.scale > MAX_DIGITS:
                raise QuantityError("range", f"quantity with exponent {self.scale} is too large to write out")
            return self.unscaled * _ten_to(self.scale)
        whole, rest = divmod(self.unscaled, _ten_to(-self.scale))
        if not rest:
            return whole
        from fractions import Fraction  # noqa: PLC0415 - it imports `decimal`, and the agent never needs it

        return Fraction(self.unscaled, _ten_to(-self.scale))

    def as_int64(self) -> int | None:
        """Return the value as Kubernetes' AsInt64 does, or None where the server no longer holds an integer."""
        if not self.machine or self.scale < 0:
            return None
        if self.scale > _FAST_DIGITS:
            return 0 if self.unscaled == 0 else None
        value = self.unscaled * _ten_to(self.scale)
        return value if -INT64_MAX - 1 <= value <= INT64_MAX else None

    def as_float(self) -> float:
        """Return a double near the value: base times a power of ten, as Kubernetes' AsApproximateFloat64 does."""
        try:
            base = float(self.unscaled)
        except OverflowError:
            base = float("inf") if self.unscaled > 0 else float("-inf")
        return base * _power_of_ten(self.scale) if base else 0.0

    @property
    def readable(self) -> str:
        """Return the quantity for people: an amount of memory in GiB, followed by the text that a selector uses.

        >>> Quantity.parse("81559Mi").readable, Quantity.parse("16Mi").readable, Quantity.parse("132").readable
        ('79.6 GiB (81559Mi)', '0.016 GiB (16Mi)', '132')
        """
        if self.format is not Format.BINARY_SI or self.scale < 0 or not _MIB <= abs(self.unscaled) < _MAX_READABLE:
            return str(self)
        gib = self.as_float() / 2**30
        return f"{gib:.1f} GiB ({self})" if abs(gib) >= 1 else f"{gib:.2g} GiB ({self})"

    @property
    def sign(self) -> int:
        """Return -1, 0 or 1 for a negative number, zero, or a positive number."""
        return (self.unscaled > 0) - (self.unscaled < 0)

    def compare(self, other: Quantity) -> int:
        """Return -1, 0 or 1 for less, equal or greater. The result is exact, and quick for any exponents."""
        if self.scale == other.scale:
            return (self.unscaled > other.unscaled) - (self.unscaled < other.unscaled)
        if self.sign != other.sign or self.sign == 0:
            return (self.sign > other.sign) - (self.sign < other.sign)
        mine, theirs = _magnitude(self), _magnitude(other)
        if mine != theirs:
            return self.sign if mine > theirs else -self.sign
        low = min(self.scale, other.scale)
        left, right = self.unscaled * _ten_to(self.scale - low), other.unscaled * _ten_to(other.scale - low)
        return (left > right) - (left < right)

    def add(self, other: Quantity) -> Quantity:
        """Return the exact sum.

        Raises:
            QuantityError: The two exponents lie too far apart for the sum to be written out.

        Source: resource.Quantity.Add (a zero receiver takes the other's format; the sum is an int64 while it and both
        numbers at its scale fit).
        """
        form = other.format if self.unscaled == 0 else self.format
        machine = self.machine and other.machine
        low = min(self.scale, other.scale)
        is_far = max(self.scale, other.scale) - low > MAX_DIGITS
        if other.unscaled == 0 and (machine or is_far):
            return Quantity(self.unscaled, self.scale, form, machine)
        if self.unscaled == 0 and (machine or is_far):
            return Quantity(other.unscaled, other.scale, form, machine)
        if is_far:
            raise QuantityError("range", "quantities are too far apart in size to be added")
        mine, theirs = self.unscaled * _ten_to(self.scale - low), other.unscaled * _ten_to(other.scale - low)
        return Quantity(mine + theirs, low, form, machine and all(map(_fits, (mine, theirs, mine + theirs))))

    def sub(self, other: Quantity) -> Quantity:
        """Return the difference by the same rules as `add`; it is exact except for one value.

        Source: int64Amount.Sub, which adds the negated value; the least int64 is its own negation, if the sum fits.
        """
        if self.machine and other.machine and other.unscaled == -INT64_MAX - 1:
            wrapped = self.add(other)
            if wrapped.machine:
                return wrapped
            exact = self.add(Quantity(-other.unscaled, other.scale, other.format))
            return Quantity(exact.unscaled, exact.scale, exact.format, machine=False)
        return self.add(Quantity(-other.unscaled, other.scale, other.format, other.machine))

    def __eq__(self, other: object) -> bool:
        return self.compare(other) == 0 if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.compare(other) < 0

    def __hash__(self) -> int:
        unscaled, scale = strip_zeros(self.unscaled, self.scale)
        return hash((unscaled, scale))

    def __str__(self) -> str:
        """Return the canonical form.

        Source: resource.Quantity.CanonicalizeBytes.
        """
        if self.unscaled == 0:
            return "0"
        if self.format is Format.BINARY_SI:
            whole = self.value if self.scale <= _FAST_DIGITS else None
            if isinstance(whole, int) and abs(whole) >= 1024:
                return binary_form(whole)
        return decimal_form(self.unscaled, self.scale, self.format)


def _fits(number: int) -> bool:
    return -INT64_MAX - 1 <= number <= INT64_MAX


def _power_of_ten(exponent: int) -> float:
    """Return a power of ten as the server computes it: the product or quotient of two table entries."""
    if exponent < -323:
        return 0.0
    if exponent > 308:
        return float("inf")
    tens, rest = divmod(abs(exponent), 32)
    if exponent < 0:
        return float(f"1e-{tens * 32}") / float(f"1e{rest}")
    return float(f"1e{tens * 32}") * float(f"1e{rest}")


@lru_cache(maxsize=64)
def _ten_to(exponent: int) -> int:
    """Return 10**exponent for an exponent that is not negative; a selector may need the same one a million times."""
    power: int = 10**exponent
    return power


def _magnitude(quantity: Quantity) -> int:
    """Return the position of the leading digit; equal values have equal magnitudes."""
    return _digits(abs(quantity.unscaled)) + quantity.scale


def _digits(number: int) -> int:
    """Count the decimal digits of a positive int, free of the limit that str() has."""
    guess = max(1, int(number.bit_length() * 0.30102999566398114))
    while _ten_to(guess) <= number:
        guess += 1
    while guess > 1 and _ten_to(guess - 1) > number:
        guess -= 1
    return guess


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    shape = _SHAPE.fullmatch(text) if text else None
    if shape is None:
        raise QuantityError(
            "format",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        )
    num, denom = shape["num"] or "0", shape["denom"] or ""
    base, exponent, form = interpret(shape["suffix"])
    if len(num) + len(denom) > MAX_DIGITS:
        raise QuantityError("numeric", "unable to parse numeric part of quantity")
    unscaled = int(num + denom) * (-1 if shape["sign"] == "-" else 1)
    scale = (exponent if base == 10 else 0) - len(denom)
    if base == 2:
        fast = not denom and 15 - len(num) - int(exponent * 3 / 10) - 1 >= 0
        unscaled <<= exponent
    else:
        fast = len(num) + len(denom) <= _FAST_DIGITS
    if fast and scale >= _NANO and abs(unscaled) <= INT64_MAX:
        return Quantity(unscaled, scale, form)
    return _rounded(unscaled, scale, form)


def _rounded(unscaled: int, scale: int, form: Format) -> Quantity:
    """Write a number in units of 1n, rounded away from zero, and cap binary quantities, as the server's slow path."""
    if unscaled == 0:
        return Quantity(0, scale if -MAX_DIGITS <= scale < 0 else 0, form, machine=False)
    sign, amount = (-1 if unscaled < 0 else 1), abs(unscaled)
    if scale < _NANO:
        drop = min(_NANO - scale, MAX_DIGITS + 20)
        amount, scale = -(-amount // 10**drop), _NANO
    elif scale - _NANO <= MAX_DIGITS:
        amount, scale = amount * _ten_to(scale - _NANO), _NANO
    rounded = Quantity(amount, scale, form)
    if form is Format.BINARY_SI and rounded.compare(Quantity(INT64_MAX)) > 0:
        amount, scale = INT64_MAX, 0
    elif form is Format.BINARY_SI and rounded.compare(Quantity(1)) < 0:
        form = Format.DECIMAL_SI
    return Quantity(sign * amount, scale, form, machine=False)
