"""Conversions between types: int(), uint(), double(), string(), bool(), bytes(), duration(), timestamp(), type().

In: a value. Out: the value in another type, or a `CelError`.

Source: cel-go's ConvertToType of each type, which follows Go's strconv.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from dra_driver.selectors.library.time import format_duration, format_timestamp, parse_duration, parse_timestamp
from dra_driver.selectors.values.arithmetic import (
    INT_MAX,
    INT_OVERFLOW,
    TIMESTAMP_OVERFLOW,
    UINT_MAX,
    UINT_OVERFLOW,
    to_timestamp,
)
from dra_driver.selectors.values.doubles import format_double
from dra_driver.selectors.values.type_names import type_name
from dra_driver.selectors.values.values import CelError, Cidr, Duration, Ip, Timestamp, TypeValue, Uint

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
