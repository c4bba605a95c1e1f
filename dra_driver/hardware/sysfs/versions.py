"""Versions of kernel drivers, as they spell them and as the API takes them."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")


def semantic_version(text: str | None) -> str | None:
    """Return a driver's version as the API takes one, or None where there is none.

    Source: versions as they occur: none, three numbers, four of them (the fourth is a build).

    >>> semantic_version("6.16.13"), semantic_version("6.19.14.31400000"), semantic_version("")
    ('6.16.13', '6.19.14', None)
    """
    found = _VERSION.match(text or "")
    return ".".join(str(int(number or 0)) for number in found.groups()) if found else None
