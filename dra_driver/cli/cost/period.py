"""The period of a report, from the options of the command line.

In: `7d`, or a beginning and an end. Out: two times in UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from dra_driver.model.errors import UsageError

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST = timedelta(days=400)


def period_of(since: str, begin: str, end: str, now: datetime) -> tuple[datetime, datetime]:
    """Return the beginning and the end; `since` counts back from the end. Raises: UsageError("usage.period")."""
    last = _moment("--to", end) if end else now
    first = _moment("--from", begin) if begin else last - _length(since)
    if not timedelta(minutes=1) <= last - first <= LONGEST:
        raise UsageError("period", f"from {first.isoformat()} to {last.isoformat()}: expected a minute to 400 days")
    return first, min(last, now)


def _length(text: str) -> timedelta:
    matched = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if matched is None:
        raise UsageError("period", f"--since={text[:40]!r} is not a length of time", hint="for example 12h, 7d or 4w")
    return min(timedelta(**{_UNITS[matched[2]]: int(matched[1])}), LONGEST + timedelta(days=1))


def _moment(flag: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "for example 2026-11-20 or 2026-11-20T18:00:00Z"
        raise UsageError("period", f"{flag}={text[:40]!r} is not a date or a time", hint=hint) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
