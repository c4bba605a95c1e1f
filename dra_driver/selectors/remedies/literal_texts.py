"""Texts of amounts and versions: the forms that people write, converted to those that Kubernetes reads.

In: a text or number. Out: the text that `quantity()` or `semver()` accepts, or None where it can't be guessed.
"""

from __future__ import annotations

import re

from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError, interpret
from dra_driver.model.semver import Semver, SemverError, normalize

_AMOUNT = re.compile(r"\s*(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?P<unit>[a-zA-Z]{0,8})\s*")
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+\Z")
_UNITS = {
    **{f"{letter}{ending}": f"{letter.upper()}i" for letter in "kmgtp" for ending in ("i", "ib", "ibyte", "ibytes")},
    **{f"{letter}{ending}": letter.upper() for letter in "mgtp" for ending in ("b", "byte", "bytes")},
    "b": "", "bytes": "", "kb": "k", "k": "k", "g": "G", "t": "T", "p": "P",
}  # fmt: skip


def exponent_of(text: str) -> int:
    """Return the exponent of a quantity such as "1e3", as Kubernetes reads it; 0 if there is none.

    >>> exponent_of("1e3"), exponent_of("15E-6"), exponent_of("1E"), exponent_of("40Gi")
    (3, -6, 0, 0)
    """
    found = _EXPONENT.search(text)
    try:
        return interpret(found[0])[1] if found else 0
    except QuantityError:
        return 0


def quantity_text(text: str) -> str | None:
    """Return a text that quantity() reads: the text itself, or with its unit corrected.

    >>> quantity_text("40GiB"), quantity_text("40 GB"), quantity_text("40Gi"), quantity_text("many")
    ('40Gi', '40G', '40Gi', None)
    """
    try:
        Quantity.parse(text)
    except QuantityError:
        found = _AMOUNT.fullmatch(text)
        unit = found["unit"] if found else ""
        if found is None or (unit and unit.lower() not in _UNITS):
            return None
        return found["number"] + (_UNITS[unit.lower()] if unit else "")
    return text


def version_text(text: str) -> str | None:
    """Return a text that semver() reads: the text itself, or with its missing parts added.

    >>> version_text("570"), version_text("v12.4"), version_text("570.1.2"), version_text("new")
    ('570.0.0', '12.4.0', '570.1.2', None)
    """
    try:
        Semver.parse(text)
    except SemverError:
        try:
            better = normalize(text)
            Semver.parse(better)
        except SemverError:
            return None
        return better
    return text
