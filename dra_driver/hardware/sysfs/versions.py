"""Versions of kernel drivers: as the drivers write them, and as the API accepts them."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")


def semantic_version(text: str | None) -> str | None:
    """Return a driver's version in the form that the API accepts, or None if the driver reports none.

    Source: the versions that drivers report: none, three numbers, or four numbers (the fourth is a build).

    >>> semantic_version("6.16.13"), semantic_version("6.19.14.31400000"), semantic_version("")
    ('6.16.13', '6.19.14', None)
    """
    found = _VERSION.match(text or "")
    return ".".join(str(int(number or 0)) for number in found.groups()) if found else None
