"""How quantities are written: their suffixes, and the canonical forms of numbers.

In: digits, exponents and suffixes. Out: their text, or the reverse. `quantity` turns them into numbers.

Source: Kubernetes API machinery, resource.Quantity (suffixes, canonical form).
"""

from __future__ import annotations

import enum
import re

from dra_driver.model.errors import InputError

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
