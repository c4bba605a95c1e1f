"""The arithmetic operators.

In: two values. Out: their sum, difference and so on, or a `CelError`. Integers have 64 bits and are checked for
overflow, doubles follow IEEE 754, and times stay within the years 1 to 9999.

Source: cel-go's common/types (overflow checks, which types can be added to which).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dra_driver.base.versions import Semver
from dra_driver.selectors.values.values import (
    COST_EXCEEDED,
    CelAbort,
    CelError,
    CelMap,
    CelQuantity,
    Cidr,
    Concat,
    Duration,
    Ip,
    NamedFormat,
    Optional,
    Timestamp,
    Uint,
    Url,
    count_work,
    find,
    list_size,
    map_items,
    map_size,
    unfold,
)

# Equality, membership and order of run-time values.

NO_SUCH_OVERLOAD = "no such overload"
_NUMBERS = frozenset({int, Uint, float})
_STRICT = frozenset({CelQuantity, Semver, Url, Ip, Cidr, NamedFormat})


def equal(left: Any, right: Any) -> bool:
    """Compare two values as `==` does.

    Raises:
        CelError: The left value's type refuses the right value's.
    """
    if left is None or right is None:
        return left is None and right is None
    return _equal(left, right)


def is_equal(left: Any, right: Any) -> bool:
    """Compare two values as `!=` and membership do: an error counts as not equal."""
    try:
        return equal(left, right)
    except CelError:
        return False


def _equal(left: Any, right: Any) -> bool:
    kind, other = type(left), type(right)
    if kind in _NUMBERS:
        return other in _NUMBERS and _equal_numbers(left, right)
    if kind in _STRICT:
        if kind is not other or (kind is CelQuantity and right.computed):
            raise CelError(NO_SUCH_OVERLOAD)
        return left.number == right.number if kind is CelQuantity else left == right  # type: ignore[no-any-return]
    if kind is list or kind is Concat:
        return (other is list or other is Concat) and _equal_lists(left, right)
    if kind is CelMap or isinstance(left, dict):
        return (other is CelMap or isinstance(right, dict)) and _equal_maps(left, right)
    if kind is not other:
        return False
    if kind is Optional:
        if not left.present or not right.present:
            return left.present == right.present  # type: ignore[no-any-return]
        if type(left.value) is CelError or (type(right.value) is CelError and type(left.value) in _STRICT):
            raise left.value if type(left.value) is CelError else right.value
        return _equal_plain(left.value, right.value)
    return left == right  # type: ignore[no-any-return]


def _equal_plain(left: Any, right: Any) -> bool:
    """Compare two values without the first rule of `==`, by which null equals only null."""
    return right is None if left is None else _equal(left, right)


def _equal_numbers(left: Any, right: Any) -> bool:
    if type(left) is not float and type(right) is not float:
        return int(left) == int(right)
    return float(left) == float(right)


def _equal_lists(left: Any, right: Any) -> bool:
    if list_size(left) != list_size(right):
        return False
    mine, theirs = unfold(left), unfold(right)
    count_work(len(mine))
    for a, b in zip(mine, theirs, strict=True):
        try:
            if not equal(a, b):
                return False
        except CelError:
            continue  # elements that can't be compared do not make the lists differ
    return True


def _equal_maps(left: Any, right: Any) -> bool:
    if map_size(left) != map_size(right):
        return False
    count_work(map_size(left))
    for key, value in map_items(left):
        found, other = find(right, key)
        if not found:
            return False
        try:
            if not equal(value, other):
                return False
        except CelError:
            continue
    return True


# Membership.


def contains(holder: Any, needle: Any) -> bool:
    """Evaluate `needle in holder`.

    Raises:
        CelError: The holder is not a container.
    """
    kind = type(holder)
    if kind is list or kind is Concat:
        elements = unfold(holder)
        count_work(len(elements))
        return any(is_equal(needle, element) for element in elements)
    if kind is CelMap or isinstance(holder, dict):
        if kind is CelMap:
            return find(holder, needle)[0]
        return type(needle) is str and needle in holder
    raise CelError(NO_SUCH_OVERLOAD)


# Order.


def _compare_numbers(left: Any, right: Any) -> int:
    if type(left) is float or type(right) is float:
        if (type(left) is float and math.isnan(left)) or (type(right) is float and math.isnan(right)):
            raise CelError("NaN values cannot be ordered")
        left, right = float(left), float(right)
    return int(left > right) - int(left < right)


_ORDERED = frozenset({bool, str, bytes})
_TIMES = frozenset({Duration, Timestamp})


def compare(left: Any, right: Any, operator: str = "") -> int:
    """Compare two values by order and return -1, 0 or 1.

    Raises:
        CelError: The types have no common order.
    """
    kind, other = type(left), type(right)
    if kind is float and math.isnan(left):
        raise CelError("NaN values cannot be ordered")
    if kind in _NUMBERS and other in _NUMBERS:
        return _compare_numbers(left, right)
    if kind is other:
        if kind in _ORDERED:
            return int(left > right) - int(left < right)
        if kind in _TIMES:
            return int(left.ns > right.ns) - int(left.ns < right.ns)
    if kind in _NUMBERS or kind in _ORDERED or kind in _TIMES or not operator:
        raise CelError(NO_SUCH_OVERLOAD)
    raise CelError(f"{NO_SUCH_OVERLOAD}: {operator}")


def is_ordered(value: Any) -> bool:
    """Return whether values of this type can be sorted."""
    return type(value) in _NUMBERS or type(value) in _ORDERED or type(value) in _TIMES


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


def _elapsed(later: Timestamp, earlier: Timestamp) -> Duration:
    """Subtract seconds first, as the server does: they may overflow where the difference would not."""
    to_duration((later.ns // _SECOND - earlier.ns // _SECOND) * _SECOND)
    return to_duration(later.ns - earlier.ns)


_SECOND = 10**9
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
    (Timestamp, Duration): lambda a, b: to_timestamp(a.ns + to_duration(-b.ns).ns, a.offset),
    (Timestamp, Timestamp): _elapsed,
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
