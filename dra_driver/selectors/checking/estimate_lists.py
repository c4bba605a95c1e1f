"""What functions of lists and sets cost, and how large their results may be.

Source: cel-go's list and set extensions; Kubernetes' CEL library cost estimator.
"""

from __future__ import annotations

from dra_driver.selectors.checking.estimate_values import (
    ALLOCATION,
    CALL,
    TEXT,
    Estimate,
    Operand,
    Rule,
    element_of,
    literal_int,
)
from dra_driver.selectors.checking.sizes import MAX, TRAVERSAL, Size, add, multiply, plus, scale, times
from dra_driver.selectors.syntax.nodes import Call
from dra_driver.selectors.values.types import Type


def _list_call(factor: float, size: Size) -> Estimate:
    return Estimate(add(scale(size[1], factor), CALL + ALLOCATION), size)


def _slice(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    assert target is not None  # noqa: S101
    count = (literal_int(args[1], target.span[1]) - literal_int(args[0], 0)) % 2**64
    return _list_call(1.0, (count, count))


def _range(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    count = literal_int(args[0], MAX)
    return _list_call(1.0, (count, count))


def _reverse(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else _list_call(1.0, target.span)


def _flatten(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    assert target is not None  # noqa: S101
    return _list_call(float(literal_int(args[0], MAX) if args else 1), target.span)


def _distinct(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else _list_call(2.0, times(target.span, target.span))


def _sort(_: Call, overload: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    assert target is not None  # noqa: S101
    keys = (args[0] if args else target).span
    factor = 2.0 + TRAVERSAL if overload.split("_")[1] in TEXT else 2.0
    return _list_call(factor, times(keys, keys))


def _sets(factor: float) -> Rule:
    def rule(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
        return Estimate(add(scale(multiply(args[0].span[1], args[1].span[1]), factor), CALL))

    return rule


def _walk_list(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    element = element_of(target)
    if element is None:
        return Estimate(scale(target.span[1], TRAVERSAL))
    return _walk(target, element)


def _includes(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    """Charge for each element of a value that may be a list (since 1.37)."""
    return None if target is None else _walk(target, element_of(target))


def _walk(target: Operand, element: tuple[Type, Size] | None) -> Estimate:
    each = 1
    if element is None:
        return Estimate(target.span[1])
    if element[0].kind in TEXT:
        each = add(1, scale(element[1][1], TRAVERSAL))
    return Estimate(multiply(target.span[1], each))


def _join(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    count, size = target.span, (0, 0)
    element = element_of(target)
    if element is not None:
        size = times(count, element[1])
    if args:
        size = plus(size, times(args[0].span, (max(count[0] - 1, 0), max(count[1] - 1, 0))))
    return Estimate(scale(size[1], TRAVERSAL), size)


def _in_list(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    return Estimate(scale(args[1].span[1], 1.0))


_SORTABLE = (
    "int",
    "uint",
    "double",
    "bool",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "string",
    "bytes",
)


LISTS_BY_EXTENSION: dict[str, Rule] = {
    "list_slice": _slice,
    "lists_range": _range,
    "list_reverse": _reverse,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": _distinct,
    **{f"list_{t}_sort": _sort for t in _SORTABLE},
    **{f"list_{t}_sortByAssociatedKeys": _sort for t in _SORTABLE},
    "list_sets_contains_list": _sets(1.0),
    "list_sets_intersects_list": _sets(1.0),
    "list_sets_equivalent_list": _sets(2.0),
}
LISTS_BY_FUNCTION: dict[str, Rule] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _walk_list),
    "join": _join,
}
LISTS_BY_OVERLOAD: dict[str, Rule] = {"in_list": _in_list}
LISTS_SINCE_1_37: dict[str, Rule] = {"dra_includes_dyn_dyn": _includes}
