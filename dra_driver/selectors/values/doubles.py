"""Doubles as text.

In: a double. Out: the text that the server prints.

Source: Go's strconv.FormatFloat with the verb g and the shortest precision.
"""

from __future__ import annotations

import math
from decimal import Decimal

_EXPONENT_FROM = 6


def format_double(number: float) -> str:
    """Print a double as Go's %g does: shortest digits, with an exponent below -4 and from 7 digits on."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)  # noqa: S101
    text = "".join(map(str, digits)).lstrip("0").rstrip("0") or "0"
    if number == 0:
        return "-0" if math.copysign(1.0, number) < 0 else "0"
    point = Decimal(repr(abs(number))).adjusted()
    lead = "-" if sign else ""
    if point < -4 or point >= _EXPONENT_FROM:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{lead}{text[0]}{fraction}e{'-' if point < 0 else '+'}{abs(point):02d}"
    if point < 0:
        return f"{lead}0.{'0' * (-point - 1)}{text}"
    if len(text) <= point + 1:
        return lead + text.ljust(point + 1, "0")
    return f"{lead}{text[: point + 1]}.{text[point + 1 :]}"
