"""List functions: size, slice, sort, flatten, distinct, statistics, membership, sets.

In: lists. Out: lists, single elements, bools, ints, or a `CelError`. Results never grow beyond what the budget could
pay for.

Source: cel-go's lists (version 3) and sets extensions; Kubernetes' list library; `includes` of the DRA environment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key, lru_cache
from itertools import pairwise
from typing import Any

from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.versions import Semver, SemverError, normalize
from dra_driver.selectors.values.equality import ADD, NO_SUCH_OVERLOAD, compare, contains, equal, is_equal, is_ordered
from dra_driver.selectors.values.types import shown, type_name
from dra_driver.selectors.values.values import (
    COST_EXCEEDED,
    MAX_ELEMENTS,
    CelAbort,
    CelError,
    CelQuantity,
    Concat,
    Duration,
    Optional,
    Timestamp,
    Uint,
    count_work,
    element_at,
    list_size,
    unfold,
)
from dra_driver.selectors.values.values import NONE as NO_VALUE

_LONGEST_RANGE = 1_000_000  # Source: cel-go 0.29, ext.Lists
_LISTS = (list, Concat)
_ZEROS = {int: 0, Uint: Uint(0), float: 0.0, Duration: Duration(0)}
_COMPARABLE = frozenset({int, Uint, float, bool, Duration, Timestamp, str, bytes})
_COMPARED_AT_ONCE = 2  # this many numbers are compared in the time of one element of work
_MAX_INCLUDED = 48  # Source: Kubernetes API resource/v1, the most entries of a list attribute


def is_list(value: Any) -> bool:
    """Return whether the value is a list."""
    return type(value) is list or type(value) is Concat


def _slice(values: Any, start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise CelError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if list_size(values) < end:
        raise CelError(f"cannot slice({start}, {end}), list is length {list_size(values)}")
    return unfold(values)[start:end]


def _range(count: int) -> list[int]:
    if count > MAX_ELEMENTS:
        raise CelAbort(COST_EXCEEDED)
    return list(range(max(count, 0)))


def _bounded_range(count: int) -> list[int]:
    """Evaluate lists.range() as it is since 1.37."""
    if count < 0:
        raise CelError(f"lists.range: size must be non-negative, got {count}")
    if count > _LONGEST_RANGE:
        raise CelError(f"lists.range: size {count} exceeds maximum allowed ({_LONGEST_RANGE})")
    return list(range(count))


def _flatten(values: Any, depth: int = 1) -> list[Any]:
    if depth < 0:
        raise CelError("level must be non-negative")
    flat: list[Any] = []
    pending: list[tuple[Any, int]] = [(values, depth + 1)]
    while pending:
        value, left = pending.pop()
        if is_list(value) and left > 0:
            elements = unfold(value)
            if len(flat) + len(pending) + len(elements) > MAX_ELEMENTS:
                raise CelAbort(COST_EXCEEDED)
            pending.extend((element, left - 1) for element in reversed(elements))
        else:
            flat.append(value)
    return flat


def _distinct(values: Any) -> list[Any]:
    """Keep the first of equal elements. Hashable values are looked up first, so that long lists stay quick."""
    kept: list[Any] = []
    texts: set[str] = set()
    for value in unfold(values):
        if type(value) is str:
            if value in texts:
                continue
            texts.add(value)
            kept.append(value)
            continue
        count_work(len(kept) // _COMPARED_AT_ONCE)
        if not any(is_equal(value, other) for other in kept):
            kept.append(value)
    return kept


def _sort_by(values: Any, keys: Any) -> list[Any]:
    elements, by = unfold(values), unfold(keys)
    if len(elements) != len(by):
        raise CelError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, "
            f"but got {len(elements)} and {len(by)} elements respectively"
        )
    if not elements:
        return elements
    if not is_ordered(by[0]):
        raise CelError("list elements must be comparable")
    if any(type(key) is not type(by[0]) for key in by):
        raise CelError("list elements must have the same type")
    count_work(len(by) * len(by).bit_length())  # about as many as are compared
    order = cmp_to_key(_order)
    return [elements[index] for index in sorted(range(len(by)), key=lambda index: order(by[index]))]


def _order(left: Any, right: Any) -> int:
    try:
        return compare(left, right)
    except CelError:
        return 0  # NaN: the server's sort treats it as neither less nor greater


def _comparable(name: str, values: Any) -> list[Any]:
    """Unfold a list; its first element must have a type for which the function is declared."""
    elements = unfold(values)
    if elements and type(elements[0]) not in _COMPARABLE:
        raise CelError(f"{NO_SUCH_OVERLOAD}: {name}({type_name(values)})")
    if any(not is_ordered(element) for element in elements):
        raise CelError(NO_SUCH_OVERLOAD)
    return elements


def _is_sorted(values: Any) -> bool:
    elements = _comparable("isSorted", values)
    return all(_order(left, right) != 1 for left, right in pairwise(elements))


def _extreme(name: str, wanted: int) -> Callable[[Any], Any]:
    def find(values: Any) -> Any:
        elements = _comparable(name, values)
        if not elements:
            raise CelError(f"{name} called on empty list")
        best = elements[0]
        for element in elements[1:]:
            if _order(best, element) == wanted:
                best = element
        return best

    return find


def _adding(nothing: Any) -> Callable[[Any], Any]:
    """Make `sum`; `nothing` is the sum of an empty list."""

    def add_up(values: Any) -> Any:
        elements = unfold(values)
        total = _ZEROS.get(type(elements[0])) if elements else nothing
        if total is None:
            raise CelError(f"{NO_SUCH_OVERLOAD}: sum({type_name(values)})")
        for element in elements:
            add = ADD.get((type(total), type(element)))
            if add is None:
                raise CelError(NO_SUCH_OVERLOAD)
            total = add(total, element)
        return total

    return add_up


def _index_of(values: Any, needle: Any) -> int:
    for index, element in enumerate(unfold(values)):
        if _found(element, needle):
            return index
    return -1


def _last_index_of(values: Any, needle: Any) -> int:
    elements = unfold(values)
    for index in range(len(elements) - 1, -1, -1):
        if _found(elements[index], needle):
            return index
    return -1


def _found(element: Any, needle: Any) -> bool:
    try:
        return equal(element, needle)
    except CelError:
        return False


def includes(value: Any, needle: Any) -> bool:
    """Return whether a list has an element or, for any other value, whether it equals the argument."""
    if is_list(value):
        if any(_found(element, needle) for element in unfold(value)[:_MAX_INCLUDED]):
            return True
        if list_size(value) > _MAX_INCLUDED:
            raise CelError(f"'includes' function cannot be applied to lists longer than {_MAX_INCLUDED} values")
        return False
    return _found(value, needle)


def includes_all(value: Any, needle: Any) -> bool:
    """Evaluate includes() as it is since 1.37, for lists of any length."""
    if is_list(value):
        return any(_found(element, needle) for element in unfold(value))
    return _found(value, needle)


def _sets_contains(values: Any, wanted: Any) -> bool:
    return all(contains(values, element) for element in unfold(wanted))


def _sets_intersects(left: Any, right: Any) -> bool:
    return any(contains(right, element) for element in unfold(left))


def _sets_equivalent(left: Any, right: Any) -> bool:
    return _sets_contains(left, right) and _sets_contains(right, left)


def _first(values: Any) -> Optional:
    return Optional(element_at(values, 0)) if list_size(values) else NO_VALUE


def _last(values: Any) -> Optional:
    size = list_size(values)
    return Optional(element_at(values, size - 1)) if size else NO_VALUE


def _unwrap(name: str) -> Callable[[Any], list[Any]]:
    def unwrap(values: Any) -> list[Any]:
        elements = unfold(values)
        if elements and type(elements[0]) is not Optional:
            raise CelError(f"{NO_SUCH_OVERLOAD}: {name}({type_name(values)})")
        for element in elements:
            if type(element) is not Optional:
                raise CelError(f"value '{shown(element)}' is not optional")
        return [element.value for element in elements if element.present]

    return unwrap


def _unary(function: Callable[[Any], Any]) -> dict[tuple[type, ...], Any]:
    return {(kind,): function for kind in _LISTS}


def _pairs(function: Callable[[Any, Any], Any]) -> dict[tuple[type, ...], Any]:
    return {(left, right): function for left in _LISTS for right in _LISTS}


LISTS: dict[str, dict[tuple[type, ...], Any]] = {
    "slice": {(kind, int, int): _slice for kind in _LISTS},
    "lists.range": {(int,): _range},
    "lists.range since 1.37": {(int,): _bounded_range},
    "reverse": _unary(lambda values: unfold(values)[::-1]),
    "flatten": {**_unary(_flatten), **{(kind, int): _flatten for kind in _LISTS}},
    "distinct": _unary(_distinct),
    "sort": _unary(lambda values: _sort_by(values, values)),
    "@sortByAssociatedKeys": _pairs(_sort_by),
    "isSorted": _unary(_is_sorted),
    "min": _unary(_extreme("min", 1)),
    "max": _unary(_extreme("max", -1)),
    "sum": _unary(_adding(0)),
    # The checker has determined the element type of an empty list.
    "sum of uint": _unary(_adding(Uint(0))),
    "sum of double": _unary(_adding(0.0)),
    "sum of duration": _unary(_adding(Duration(0))),
    "sets.contains": _pairs(_sets_contains),
    "sets.intersects": _pairs(_sets_intersects),
    "sets.equivalent": _pairs(_sets_equivalent),
    "first": _unary(_first),
    "last": _unary(_last),
    "unwrapOpt": _unary(_unwrap("unwrapOpt")),
    "optional.unwrap": _unary(_unwrap("optional.unwrap")),
}
# Functions of a list and any second operand, whose type is not checked.
LIST_AND_ANY: dict[str, Callable[[Any, Any], Any]] = {
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "indexOf since 1.37": _index_of,
    "lastIndexOf since 1.37": _last_index_of,
}


# Kubernetes quantities and semantic versions in expressions.

_SHORT = 64


def to_quantity(text: str) -> CelQuantity:
    """Evaluate quantity(). Each call makes a quantity of its own, as the server finds one in a map by identity."""
    return CelQuantity(interned_quantity(text).number)


def interned_quantity(text: str) -> CelQuantity:
    """Return the quantity that all devices with this text share.

    Raises:
        CelError: The text is not a quantity.
    """
    return _interned(text) if len(text) <= _SHORT else _interned.__wrapped__(text)


@lru_cache(maxsize=4096)
def _interned(text: str) -> CelQuantity:
    try:
        return CelQuantity(Quantity.parse(text))
    except QuantityError as error:
        raise CelError(error.message) from error


def to_semver(text: str, lenient: bool = False) -> Semver:
    """Evaluate semver()."""
    try:
        return Semver.parse(normalize(text) if lenient else text)
    except SemverError as error:
        raise CelError(error.message) from error


def _is(read: Any) -> Any:
    def test(*args: Any) -> bool:
        try:
            read(*args)
        except CelError:
            return False
        return True

    return test


def _as_integer(value: CelQuantity) -> int:
    number = value.number.as_int64()
    if number is None:
        raise CelError("cannot convert value to integer")
    return number


def _whole(value: CelQuantity | int) -> Quantity:
    return value.number if isinstance(value, CelQuantity) else Quantity.of(value)


def _add(left: CelQuantity, right: CelQuantity | int) -> CelQuantity:
    try:
        return CelQuantity(left.number.add(_whole(right)), computed=True)
    except QuantityError as error:
        raise CelError(error.message) from error


def _sub(left: CelQuantity, right: CelQuantity | int) -> CelQuantity:
    try:
        return CelQuantity(left.number.sub(_whole(right)), computed=True)
    except QuantityError as error:
        raise CelError(error.message) from error


def _fresh(text: str) -> CelQuantity:
    """Evaluate quantity() for a result that may be changed later."""
    return CelQuantity(to_quantity(text).number)


def _changing(operation: Any) -> Any:
    """Make add or sub as they are up to 1.36.

    A number that does not fit an int64 is changed in place, and the result shares it.

    Source: Kubernetes' quantity library before 1.37, which copies a quantity without the number behind it.
    """

    def change(left: CelQuantity, right: CelQuantity | int) -> CelQuantity:
        result: CelQuantity = operation(left, right)
        if left.number.machine:
            return result
        left.aliases = left.aliases or [left]
        left.aliases.append(result)
        result.aliases = left.aliases
        total = result.number
        for alias in left.aliases:
            alias.number = Quantity(total.unscaled, total.scale, alias.number.format, machine=False)
        return result

    return change


def _int64(number: int) -> int:
    """Wrap an unsigned number as the server's conversion does."""
    return number - 2**64 if number >= 2**63 else number


_TWO_QUANTITIES, _TWO_VERSIONS = (CelQuantity, CelQuantity), (Semver, Semver)

QUANTITIES: dict[str, dict[tuple[type, ...], Any]] = {
    "quantity": {(str,): to_quantity},
    "isQuantity": {(str,): _is(to_quantity)},
    "sign": {(CelQuantity,): lambda value: value.number.sign},
    "isInteger": {(CelQuantity,): lambda value: value.number.as_int64() is not None},
    "asInteger": {(CelQuantity,): _as_integer},
    "asApproximateFloat": {(CelQuantity,): lambda value: value.number.as_float()},
    "add": {_TWO_QUANTITIES: _add, (CelQuantity, int): _add},
    "sub": {_TWO_QUANTITIES: _sub, (CelQuantity, int): _sub},
    "quantity up to 1.36": {(str,): _fresh},
    "add up to 1.36": {_TWO_QUANTITIES: _changing(_add), (CelQuantity, int): _changing(_add)},
    "sub up to 1.36": {_TWO_QUANTITIES: _changing(_sub), (CelQuantity, int): _changing(_sub)},
    "isGreaterThan": {
        _TWO_QUANTITIES: lambda left, right: left.number.compare(right.number) > 0,
        _TWO_VERSIONS: lambda left, right: left.compare(right) > 0,
    },
    "isLessThan": {
        _TWO_QUANTITIES: lambda left, right: left.number.compare(right.number) < 0,
        _TWO_VERSIONS: lambda left, right: left.compare(right) < 0,
    },
    "compareTo": {
        _TWO_QUANTITIES: lambda left, right: left.number.compare(right.number),
        _TWO_VERSIONS: lambda left, right: left.compare(right),
    },
    "semver": {(str,): to_semver, (str, bool): to_semver},
    "isSemver": {(str,): _is(to_semver), (str, bool): _is(to_semver)},
    "major": {(Semver,): lambda value: _int64(value.major)},
    "minor": {(Semver,): lambda value: _int64(value.minor)},
    "patch": {(Semver,): lambda value: _int64(value.patch)},
}
