"""Durations and timestamps: their texts and their parts.

In: Go duration texts, RFC 3339 texts, zone names. Out: `Duration`, `Timestamp`, ints. No clock is read.

Source: Go's time.ParseDuration and RFC 3339 layout; cel-go's accessors.
"""

from __future__ import annotations

import datetime
import math
import re
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from dra_driver.selectors.values.equality import (
    INT_MAX,
    INT_MIN,
    INT_OVERFLOW,
    TIMESTAMP_OVERFLOW,
    UINT_MAX,
    UINT_OVERFLOW,
    to_timestamp,
)
from dra_driver.selectors.values.messages import quote
from dra_driver.selectors.values.types import type_name
from dra_driver.selectors.values.values import CelError, Cidr, Duration, Ip, Timestamp, TypeValue, Uint, format_double

_NS = 10**9
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": _NS,
    "m": 60 * _NS,
    "h": 3600 * _NS,
}
_PART = re.compile(r"([0-9]*+)(?:\.([0-9]*+))?(ns|us|µs|μs|ms|s|m|h)")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]++))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  (arithmetic only)
_EARLIEST, _LATEST = -62135596800 + 2 * 86400, 253402300800 - 2 * 86400
_OFFSET = re.compile(r"([+-]?)0*+([0-9]*+)")
_UNIVERSAL = frozenset({"", "UTC", "Local"})  # a scheduler's own zone is that of its image, which has none
_HERE = re.compile(r"(?:^|(?<=/))(?:\./+|/+)")  # the folder itself, in a path


def parse_duration(text: str) -> Duration | None:
    """Read a Go duration ("1h30m", "-1.5s", "0"); return None if the text is not one or does not fit an int64."""
    negative = text[:1] == "-"
    body = text[1:] if text[:1] in {"+", "-"} and text else text
    if body == "0":
        return Duration(0)
    if not body or len(body) > 1000:
        return None
    total, at = 0, 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None or not (part[1] or part[2]):
            return None
        unit = _UNITS[part[3]]
        total += int(part[1] or "0") * unit
        if part[2]:
            total += int(part[2]) * unit // 10 ** len(part[2])
        at = part.end()
    total = -total if negative else total
    return Duration(total) if INT_MIN <= total <= INT_MAX else None


def parse_timestamp(text: str) -> Timestamp | None:
    """Read an RFC 3339 time; return None if the text is not one.

    Raises:
        CelError: The time lies outside the years 1 to 9999.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[group]) for group in range(1, 7))
    if year == 0:
        raise CelError(TIMESTAMP_OVERFLOW)
    try:
        moment = datetime.datetime(year, month, day, hour, minute, second)  # noqa: DTZ001
    except ValueError:
        return None
    offset = 0
    if found[8]:
        if int(found[9]) > 24 or int(found[10]) > 60:
            return None
        offset = (int(found[9]) * 60 + int(found[10])) * (-1 if found[8] == "-" else 1)
    fraction = int((found[7] or "0")[:9].ljust(9, "0"))
    delta = moment - _EPOCH
    return to_timestamp((delta.days * 86400 + delta.seconds - offset * 60) * _NS + fraction, offset)


def format_timestamp(value: Timestamp) -> str:
    """Format a time as RFC 3339 with all its fraction digits, at the offset with which it was written."""
    seconds, fraction = divmod(value.ns, _NS)
    days, second = divmod(seconds + value.offset * 60, 86400)
    day = min(max(days + _EPOCH.toordinal(), 1), datetime.date.max.toordinal())
    date = datetime.date.fromordinal(day)
    text = f"{date.year:04d}-{date.month:02d}-{date.day:02d}T"
    text += f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    if fraction:
        text = f"{text}.{fraction:09d}".rstrip("0")
    if not value.offset:
        return text + "Z"
    return f"{text}{'-' if value.offset < 0 else '+'}{abs(value.offset) // 60:02d}:{abs(value.offset) % 60:02d}"


def format_duration(value: Duration) -> str:
    """Format a duration in seconds."""
    # The server divides doubles here, so this code does too.
    seconds, rest = divmod(abs(value.ns), _NS)
    number = float(seconds) + float(rest) / 1e9
    return f"{'-' if value.ns < 0 else ''}{Decimal(repr(number)):f}".removesuffix(".0") + "s"


def _zone(name: str) -> zoneinfo.ZoneInfo:
    if ".." in name or name[:1] in {"/", "\\"}:
        raise CelError("time: invalid location name")
    try:
        return zoneinfo.ZoneInfo(_HERE.sub("", name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise CelError(f"unknown time zone {name}") from error


def _number(text: str) -> int:
    """Read a part of an offset as Go's strconv.Atoi does."""
    found = _OFFSET.fullmatch(text)
    if found is None or not text[-1:].isdigit():
        raise CelError(f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    number = int(found[1] + (found[2] or "0")[:20])
    if not INT_MIN <= number <= INT_MAX:
        raise CelError(f"strconv.Atoi: parsing {quote(text)}: value out of range")
    return number


def _wrapped(number: int) -> int:
    """Return what an int64 keeps of a number."""
    return (number - INT_MIN) % 2**64 + INT_MIN


def _written_offset(hours: str, minutes: str) -> int:
    """Return the seconds of an offset such as +02:00. The server bounds neither part, and its integers overflow."""
    whole, rest = _number(hours) * 60, _number(minutes)
    total = _wrapped(_wrapped(whole - rest if hours[0] == "-" else whole + rest) * 60 * _NS)
    return int(total / _NS)


def _offset(value: Timestamp, zone: str | None) -> int:
    """Return by how many seconds a zone is ahead of UTC at a moment."""
    if zone is None or zone in _UNIVERSAL:
        return 0
    hours, colon, minutes = zone.partition(":")
    if colon:
        return _written_offset(hours, minutes)
    found = _zone(zone)
    within = min(max(value.ns // _NS, _EARLIEST), _LATEST)  # zones have no rules for the earliest and latest times
    moment = (_EPOCH + datetime.timedelta(seconds=within)).replace(tzinfo=datetime.UTC)
    ahead = moment.astimezone(found).utcoffset()
    return int(ahead.total_seconds()) if ahead is not None else 0


class _Civil(NamedTuple):
    """A date and a time of day. The year may lie outside the range of the standard library."""

    year: int
    month: int
    day: int
    weekday: int  # Sunday is 0
    day_of_year: int  # from 0
    second: int


def _civil(value: Timestamp, zone: str | None) -> _Civil:
    days, second = divmod(value.ns // _NS + _offset(value, zone), 86400)
    cycles, rest = divmod(days + _EPOCH.toordinal() - 1, 146_097)  # 400 years always have this many days
    date = datetime.date.fromordinal(rest + 1)
    return _Civil(
        date.year + 400 * cycles, date.month, date.day, date.isoweekday() % 7, date.timetuple().tm_yday - 1, second
    )


_PARTS: dict[str, Callable[[_Civil], int]] = {
    "getFullYear": lambda civil: civil.year,
    "getMonth": lambda civil: civil.month - 1,
    "getDayOfYear": lambda civil: civil.day_of_year,
    "getDayOfMonth": lambda civil: civil.day - 1,
    "getDate": lambda civil: civil.day,
    "getDayOfWeek": lambda civil: civil.weekday,
    "getHours": lambda civil: civil.second // 3600,
    "getMinutes": lambda civil: civil.second // 60 % 60,
    "getSeconds": lambda civil: civil.second % 60,
}
_SPANS = {"getHours": 3600 * _NS, "getMinutes": 60 * _NS, "getSeconds": _NS, "getMilliseconds": 10**6}


def _part(name: str) -> Callable[..., int]:
    if name == "getMilliseconds":

        def milliseconds(value: Timestamp, zone: str | None = None) -> int:
            _offset(value, zone)
            return value.ns % _NS // 10**6

        return milliseconds
    read = _PARTS[name]
    return lambda value, zone=None: read(_civil(value, zone))


def _span(unit: int) -> Callable[[Duration], int]:
    return lambda value: value.ns // unit if value.ns >= 0 else -(-value.ns // unit)


def accessors() -> dict[str, dict[tuple[type, ...], Callable[..., Any]]]:
    """Return the accessor functions by name and operand types."""
    table: dict[str, dict[tuple[type, ...], Callable[..., Any]]] = {}
    for name in [*_PARTS, "getMilliseconds"]:
        part = _part(name)
        table[name] = {(Timestamp,): part, (Timestamp, str): part}
        if name in _SPANS:
            table[name][(Duration,)] = _span(_SPANS[name])
    return table


# Conversions between types: int(), uint(), double(), string(), bool(), bytes(), duration(), timestamp(), type().

_INT = re.compile(r"[+-]?[0-9]++")
_UINT = re.compile(r"[0-9]++")
_DIGITS = r"[0-9](?>(?:_?[0-9])*)"
_DECIMAL = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX_FLOAT = re.compile(r"[+-]?0[xX]_?(?=[0-9a-fA-F.])[0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?[pP][+-]?[0-9]++")
_INFINITY = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_MAX_DIGITS = 400


def _mismatch(source: str, target: str) -> CelError:
    return CelError(f"type conversion error from '{source}' to '{target}'")


def _digits(text: str) -> int:
    stripped = text.lstrip("+-").lstrip("0") or "0"
    number = int(stripped) if len(stripped) <= 25 else UINT_MAX + 1
    return -number if text.startswith("-") else number


def _string_to_int(text: str) -> int:
    if _INT.fullmatch(text):
        number = _digits(text)
        if -INT_MAX - 1 <= number <= INT_MAX:
            return number
    raise _mismatch("string", "int")


def _string_to_uint(text: str) -> Uint:
    if _UINT.fullmatch(text) and _digits(text) <= UINT_MAX:
        return Uint(_digits(text))
    raise _mismatch("string", "uint")


def _string_to_double(text: str) -> float:
    if _DECIMAL.fullmatch(text):
        number = float(text)
    elif _INFINITY.fullmatch(text):
        return -math.inf if text.startswith("-") else math.inf
    elif text.lower() == "nan":
        return math.nan
    elif _HEX_FLOAT.fullmatch(text) and len(text) <= _MAX_DIGITS:
        number = _hex_float(text)
    else:
        raise _mismatch("string", "double")
    if math.isinf(number):
        raise _mismatch("string", "double")
    return number


def _hex_float(text: str) -> float:
    try:
        return float.fromhex(text.replace("_", ""))
    except (ValueError, OverflowError) as error:
        raise _mismatch("string", "double") from error


def _string_to_bool(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _mismatch("string", "bool")


def _double_to_int(number: float) -> int:
    if not math.isfinite(number) or number <= -(2.0**63) or number >= 2.0**63:
        raise CelError(INT_OVERFLOW)
    return int(number)


def _double_to_uint(number: float) -> Uint:
    if not math.isfinite(number) or number < 0 or number >= 2.0**64:
        raise CelError(UINT_OVERFLOW)
    return Uint(int(number))


def _uint_to_int(number: Uint) -> int:
    if number > INT_MAX:
        raise CelError(INT_OVERFLOW)
    return int(number)


def _int_to_uint(number: int) -> Uint:
    if number < 0:
        raise CelError(UINT_OVERFLOW)
    return Uint(number)


def _bytes_to_string(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from error


def _string_to_duration(text: str) -> Duration:
    found = parse_duration(text)
    if found is None:
        raise _mismatch("string", "google.protobuf.Duration")
    return found


def _string_to_timestamp(text: str) -> Timestamp:
    found = parse_timestamp(text)
    if found is None:
        raise _mismatch("string", "google.protobuf.Timestamp")
    return found


def _int_to_timestamp(seconds: int) -> Timestamp:
    if not -62135596800 <= seconds <= 253402300799:
        raise CelError(TIMESTAMP_OVERFLOW)
    return to_timestamp(seconds * 10**9)


def _int_to_duration(_: int) -> Duration:
    raise _mismatch("int", "google.protobuf.Duration")


def _same(value: Any) -> Any:
    return value


CONVERSIONS: dict[str, dict[tuple[type, ...], Callable[..., Any]]] = {
    "bool": {(bool,): _same, (str,): _string_to_bool},
    "bytes": {(bytes,): _same, (str,): lambda text: text.encode("utf-8", "surrogatepass")},
    "double": {(float,): _same, (int,): float, (Uint,): float, (str,): _string_to_double},
    "duration": {(Duration,): _same, (int,): _int_to_duration, (str,): _string_to_duration},
    "int": {
        (int,): _same,
        (float,): _double_to_int,
        (Duration,): lambda value: value.ns,
        (str,): _string_to_int,
        (Timestamp,): lambda value: value.ns // 10**9,
        (Uint,): _uint_to_int,
    },
    "string": {
        (str,): _same,
        (bool,): lambda value: "true" if value else "false",
        (bytes,): _bytes_to_string,
        (float,): format_double,
        (Duration,): format_duration,
        (int,): str,
        (Timestamp,): format_timestamp,
        (Uint,): lambda value: str(int(value)),
        (Ip,): lambda value: str(value.address),
        (Cidr,): lambda value: f"{value.address}/{value.prefix}",
    },
    "timestamp": {(Timestamp,): _same, (int,): _int_to_timestamp, (str,): _string_to_timestamp},
    "uint": {(Uint,): _same, (float,): _double_to_uint, (int,): _int_to_uint, (str,): _string_to_uint},
}


def type_of_value(value: Any) -> TypeValue:
    """Evaluate type()."""
    return TypeValue(type_name(value))
