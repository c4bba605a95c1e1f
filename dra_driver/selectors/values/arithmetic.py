"""The arithmetic operators.

In: two values. Out: their sum, difference and so on, or a `CelError`. Integers have 64 bits and are checked for
overflow, doubles follow IEEE 754, and times stay within the years 1 to 9999.

Source: cel-go's common/types (overflow checks, which types can be added to which).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dra_driver.selectors.values.containers import Concat, list_size
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.values import COST_EXCEEDED, CelAbort, CelError, Duration, Timestamp, Uint

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
TIME_MIN, TIME_MAX = -62135596800 * 10**9, 253402300800 * 10**9 - 1
MAX_TEXT = 16_000_000  # characters; the budget could never pay for touching a longer text
_EAGER = 32  # lists of up to this many elements are joined at once

INT_OVERFLOW, UINT_OVERFLOW = "integer overflow", "unsigned integer overflow"
DURATION_OVERFLOW, TIMESTAMP_OVERFLOW = "integer overflow", "timestamp overflow"


def to_int(value: int, text: str = INT_OVERFLOW) -> int:
    """Return the value if it fits an int64."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CelError(text)


def to_uint(value: int) -> Uint:
    """Return the value if it fits a uint64."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise CelError(UINT_OVERFLOW)


def to_duration(ns: int) -> Duration:
    """Return a duration if it fits an int64 of nanoseconds."""
    return Duration(to_int(ns, DURATION_OVERFLOW))


def to_timestamp(ns: int, offset: int = 0) -> Timestamp:
    """Return a timestamp if it lies within the years 1 to 9999."""
    if TIME_MIN <= ns <= TIME_MAX:
        return Timestamp(ns, offset)
    raise CelError(TIMESTAMP_OVERFLOW)


def checked_text(text: Any) -> Any:
    """Return a string or bytes value unless it is longer than the budget could ever pay for."""
    if len(text) > MAX_TEXT:
        raise CelAbort(COST_EXCEEDED)
    return text


def join_lists(left: Any, right: Any) -> Any:
    """Concatenate two lists; long ones are joined lazily, as the server does."""
    if type(left) is list and type(right) is list and len(left) + len(right) <= _EAGER:
        return left + right
    return Concat(left, right) if list_size(right) else left


def _truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _divide_int(left: int, right: int) -> int:
    if right == 0:
        raise CelError("division by zero")
    return to_int(_truncated(left, right))


def _modulo_int(left: int, right: int) -> int:
    if right == 0:
        raise CelError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise CelError(INT_OVERFLOW)
    return left - right * _truncated(left, right)


def _divide_uint(left: int, right: int) -> Uint:
    if right == 0:
        raise CelError("division by zero")
    return Uint(int(left) // int(right))


def _modulo_uint(left: int, right: int) -> Uint:
    if right == 0:
        raise CelError("modulus by zero")
    return Uint(int(left) % int(right))


def _divide_double(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _multiply_double(left: float, right: float) -> float:
    return left * right


_Table = dict[tuple[type, type], Callable[[Any, Any], Any]]
_LISTS = (list, Concat)

ADD: _Table = {
    (int, int): lambda a, b: to_int(a + b),
    (Uint, Uint): lambda a, b: to_uint(int(a) + int(b)),
    (float, float): lambda a, b: a + b,
    (str, str): lambda a, b: checked_text(a + b),
    (bytes, bytes): lambda a, b: checked_text(a + b),
    (Duration, Duration): lambda a, b: to_duration(a.ns + b.ns),
    (Duration, Timestamp): lambda a, b: to_timestamp(a.ns + b.ns, b.offset),
    (Timestamp, Duration): lambda a, b: to_timestamp(a.ns + b.ns, a.offset),
    **{(a, b): join_lists for a in _LISTS for b in _LISTS},
}
SUBTRACT: _Table = {
    (int, int): lambda a, b: to_int(a - b),
    (Uint, Uint): lambda a, b: to_uint(int(a) - int(b)),
    (float, float): lambda a, b: a - b,
    (Duration, Duration): lambda a, b: to_duration(a.ns - b.ns),
    (Timestamp, Duration): lambda a, b: to_timestamp(a.ns - b.ns, a.offset),
    (Timestamp, Timestamp): lambda a, b: to_duration(a.ns - b.ns),
}
MULTIPLY: _Table = {
    (int, int): lambda a, b: to_int(a * b),
    (Uint, Uint): lambda a, b: to_uint(int(a) * int(b)),
    (float, float): _multiply_double,
}
DIVIDE: _Table = {(int, int): _divide_int, (Uint, Uint): _divide_uint, (float, float): _divide_double}
MODULO: _Table = {(int, int): _modulo_int, (Uint, Uint): _modulo_uint}

_RECEIVERS = frozenset({str, Duration, Timestamp})  # types that refuse every call themselves, with the short text
OPERATORS: dict[str, _Table] = {
    "_+_": ADD,
    "_-_": SUBTRACT,
    "_*_": MULTIPLY,
    "_/_": DIVIDE,
    "_%_": MODULO,
}


def refuse(operator: str, left: Any) -> CelError:
    """Return the error of an operator that does not accept its operands.

    Its text names the operator unless some overload takes the left operand's type, or that type is in `_RECEIVERS`.
    """
    if type(left) in _RECEIVERS or any(kind is type(left) for kind, _ in OPERATORS[operator]):
        return CelError(NO_SUCH_OVERLOAD)
    return CelError(f"{NO_SUCH_OVERLOAD}: {operator}")


def negate(value: Any) -> Any:
    """Evaluate unary minus."""
    kind = type(value)
    if kind is int:
        return to_int(-value)
    if kind is float:
        return -value
    if kind is Duration:
        return to_duration(-value.ns)
    raise CelError(NO_SUCH_OVERLOAD if kind in _RECEIVERS or kind is bool else f"{NO_SUCH_OVERLOAD}: -_")
