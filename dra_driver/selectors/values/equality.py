"""Equality, membership and order of run-time values.

In: two values. Out: a bool, or a `CelError` where the server's comparison is an error. Compared elements are counted,
so that nested shared lists can't make one comparison run without end.

Source: cel-go's Equal and Compare; Kubernetes' own types refuse other types on their right.
"""

from __future__ import annotations

import math
from typing import Any

from dra_driver.model.semver import Semver
from dra_driver.selectors.values.containers import CelMap, Concat, find, list_size, map_items, map_size, unfold
from dra_driver.selectors.values.values import (
    CelError,
    CelQuantity,
    Cidr,
    Duration,
    Ip,
    NamedFormat,
    Optional,
    Timestamp,
    Uint,
    Url,
)
from dra_driver.selectors.values.work import count_work

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
