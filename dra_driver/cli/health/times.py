"""The end of a cordon, which users write as a duration from now or as a time.

>>> until_of("90m", now=0.0)
5400.0
>>> until_of("1970-01-02T00:00:00Z", now=0.0)
86400.0
"""

from __future__ import annotations

import re
from datetime import datetime

from dra_driver.model.errors import UsageError

_DURATION = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def until_of(text: str, now: float) -> float:
    """Return the time in seconds since 1970.

    Raises: UsageError("usage.until") for a text that is not a time, or for a time that has passed.
    """
    match = _DURATION.fullmatch(text)
    if match:
        return now + int(match[1]) * _UNITS[match[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UsageError("until", f"--until={text!r} is not a time", hint="for example 2h, 7d or 2027-01-31T08:00:00Z")
    if at.timestamp() <= now:
        raise UsageError("until", f"--until={text} has passed")
    return at.timestamp()
