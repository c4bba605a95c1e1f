"""What functions of texts and patterns cost, and how large their results may be.

Source: Kubernetes' CEL library cost estimator; cel-go's standard costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dra_driver.selectors.check.declarations import (
    ITEMS,
    MAX,
    REGEX,
    TRAVERSAL,
    UNKNOWN,
    Path,
    Size,
    add,
    device_size,
    multiply,
    plus,
    scale,
    times,
)
from dra_driver.selectors.parse.tree import Call, Literal, Node
from dra_driver.selectors.values.types import Type

# What estimate rules take and return: operands, and a call's highest cost and the size of its result.


class Estimate(NamedTuple):
    """The most that a call may cost (with `whole`, including its operands), and the size of its result if known."""

    cost: int
    size: Size | None = None
    whole: bool = False


class Operand(NamedTuple):
    """An operand, with what was known about it when it was visited."""

    node: Node
    path: Path
    size: Size | None  # None if it is unknown

    @property
    def span(self) -> Size:
        """The size, or the full range if it is unknown."""
        return self.size if self.size is not None else UNKNOWN


Rule = Callable[[Call, str, "Operand | None", list[Operand]], "Estimate | None"]

CALL, ALLOCATION = 1, 10

TEXT = frozenset({"string", "bytes"})


def literal_int(operand: Operand, default: int) -> int:
    """Return the value of an int literal, with 0 for a negative one; return the default for any other operand."""
    node = operand.node
    if type(node) is Literal and type(node.value) is int:
        return max(node.value, 0)
    return default


def element_of(operand: Operand) -> tuple[Type, Size] | None:
    """Return the type and size of the elements of a list, or None if the operand is not a container."""
    params = operand.node.type.params
    if not params:
        return None
    size = device_size([*operand.path.steps(), ITEMS]) if operand.path.length else None
    return params[0], size if size is not None else UNKNOWN


def _walk_target(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else Estimate(scale(target.span[1], TRAVERSAL), target.span)


def walk_first(factor: float = TRAVERSAL, *, sized: bool = False) -> Rule:
    """Return the rule of a function that walks its first argument; with `sized`, its result is as long."""

    def rule(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
        if not args:
            return None
        return Estimate(scale(args[0].span[1], factor), args[0].span if sized else None)

    return rule


def _split(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    most = target.span[1]
    if len(args) > 1 and type(args[1].node) is Literal and type(args[1].node.value) is int:
        most = args[1].node.value % 2**64
    return Estimate(scale(target.span[1], 2 * TRAVERSAL), (0, most))


def _replace(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None or len(args) < 2:
        return None
    text, old, new = target.span, args[0].span, args[1].span
    if old[0] == 0:
        most = add(multiply(add(text[1], 1), new[1]), text[1])
    elif new[1] <= old[0]:
        most = text[1]
    else:
        most = multiply(_ceil_divide(text[1], old[0]), new[1])
    if old[1] == 0:
        least = add(multiply(add(text[0], 1), new[0]), text[0])
    elif old[1] <= new[0]:
        least = text[0]
    else:
        least = multiply(_ceil_divide(text[0], old[1]), new[0])
    return Estimate(scale(text[1], 2 * TRAVERSAL), (least, most))


def _ceil_divide(left: int, right: int) -> int:
    """Divide as doubles and round up."""
    quotient = float(left) / float(right)
    whole = int(quotient)
    return min(whole + (quotient > whole), MAX)


def _find(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None or not args:
        return None
    return Estimate(_regex_cost(target.span, args[0].span), (0, target.span[1]))


def _regex_cost(text: Size, pattern: Size) -> int:
    # The length plus one, so that an expensive pattern on an empty string is not free.
    return multiply(scale(add(text[1], 1), TRAVERSAL), scale(pattern[1], REGEX))


def _format(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else Estimate(scale(target.span[1], TRAVERSAL))


def _to_bytes(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    size = args[0].span
    return Estimate(scale(size[1], TRAVERSAL), (size[0], size[1] * 4 % 2**64))


def _bytes_to_string(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    size = args[0].span
    return Estimate(scale(size[1], TRAVERSAL), (size[0] // 4, size[1]))


def _quote(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    size = args[0].span
    return Estimate(scale(size[1], TRAVERSAL), ((size[0] + 2) % 2**64, (size[1] * 2 + 2) % 2**64))


def _matches(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    return None if target is None else Estimate(_regex_cost(target.span, args[0].span))


def _contains(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    return Estimate(multiply(scale(target.span[1], TRAVERSAL), scale(args[0].span[1], TRAVERSAL)))


def _matches_both(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    return Estimate(_regex_cost(args[0].span, args[1].span)) if len(args) == 2 else None


TEXTS_BY_FUNCTION: dict[str, Rule] = {
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _walk_target),
    "url": walk_first(sized=True),
    "replace": _replace,
    "split": _split,
    "find": _find,
    "findAll": _find,
}
TEXTS_BY_OVERLOAD: dict[str, Rule] = {
    "string_format": _format,
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _bytes_to_string,
    "strings_quote": _quote,
    "starts_with_string": walk_first(),
    "ends_with_string": walk_first(),
    "matches_string": _matches,
    "contains_string": _contains,
}
TEXTS_SINCE_1_37: dict[str, Rule] = {"matches": _matches_both}


# What functions of lists and sets cost, and how large their results may be.


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


# What each function costs in the estimate, and how large its result may be.


def rule_for(function: str, overload: str, *, newer: bool) -> Rule | None:
    """Find the rule for a call; `newer` selects the rules since 1.37."""
    if newer and overload in _SINCE_1_37:
        return _SINCE_1_37[overload]
    return LISTS_BY_EXTENSION.get(overload) or _BY_FUNCTION.get(function) or _BY_OVERLOAD.get(overload)


# Kubernetes' rules by function name.


def _constant(cost: int) -> Rule:
    def rule(_: Call, __: str, ___: Operand | None, ____: list[Operand]) -> Estimate | None:
        return Estimate(cost)

    return rule


def _ip(_: Call, overload: str, __: Operand | None, args: list[Operand]) -> Estimate | None:
    if overload == "cidr_ip" or not args:
        return Estimate(1)
    return Estimate(scale(args[0].span[1], TRAVERSAL))


def _contains_ip(_: Call, overload: str, __: Operand | None, args: list[Operand]) -> Estimate | None:
    cost = scale(32, TRAVERSAL)
    if overload == "cidr_contains_ip_string":
        cost = add(cost, scale(args[0].span[1], TRAVERSAL))
    return Estimate(cost)


def _contains_cidr(_: Call, overload: str, __: Operand | None, args: list[Operand]) -> Estimate | None:
    cost = scale(32, TRAVERSAL) + scale(16, TRAVERSAL) + 1
    if overload == "cidr_contains_cidr_string":
        cost = add(cost, scale(args[0].span[1], TRAVERSAL))
    return Estimate(cost)


def _validate(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    return None if target is None else Estimate(scale(scale(args[0].span[1], TRAVERSAL), 128 * REGEX))


def _compare(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    return Estimate(scale(min(args[0].span[1], args[1].span[1]), TRAVERSAL))


_CHEAP_TO_COMPARE = frozenset({"net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"})


def _equals(node: Call, overload: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    left, right = args[0].node.type, args[1].node.type
    if left == right:
        if left.name in _CHEAP_TO_COMPARE:
            return Estimate(1)
        if left.name == "kubernetes.NamedFormat":
            return Estimate(scale(64, TRAVERSAL))
        if left.name == "kubernetes.URL":
            return Estimate(scale(args[1].size[1] if args[1].size is not None else 1, TRAVERSAL))
    return _compare(node, overload, target, args)


# Standard overloads.


def _concatenate(_: Call, overload: str, __: Operand | None, args: list[Operand]) -> Estimate | None:
    size = plus(args[0].span, args[1].span)
    return Estimate(1 if overload == "add_list" else scale(size[1], TRAVERSAL), size)


_BY_FUNCTION: dict[str, Rule] = {
    "check": _constant(350_000),
    **dict.fromkeys(
        [
            "serviceAccount",
            "path",
            "group",
            "resource",
            "subresource",
            "namespace",
            "name",
            "allowed",
            "reason",
            "error",
            "errored",
            "fieldSelector",
            "labelSelector",
            "masked",
            "prefixLength",
            "family",
            "isUnspecified",
            "isLoopback",
            "isLinkLocalMulticast",
            "isLinkLocalUnicast",
            "isGlobalUnicast",
            "sign",
            "asInteger",
            "isInteger",
            "asApproximateFloat",
            "isGreaterThan",
            "isLessThan",
            "compareTo",
            "add",
            "sub",
            "major",
            "minor",
            "patch",
            "getScheme",
            "getHost",
            "getHostname",
            "getPort",
            "getEscapedPath",
            "getQuery",
            "format.named",
        ],
        _constant(1),
    ),
    **LISTS_BY_FUNCTION,
    **TEXTS_BY_FUNCTION,
    **dict.fromkeys(["quantity", "isQuantity", "semver", "isSemver", "cidr", "isIP", "isCIDR"], walk_first()),
    "ip": _ip,
    "ip.isCanonical": walk_first(2 * TRAVERSAL),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "includes": _constant(48),
    "_==_": _equals,
}


_SINCE_1_37: dict[str, Rule] = {**LISTS_SINCE_1_37, **TEXTS_SINCE_1_37}
_BY_OVERLOAD: dict[str, Rule] = {
    **LISTS_BY_OVERLOAD,
    **TEXTS_BY_OVERLOAD,
    "add_string": _concatenate,
    "add_bytes": _concatenate,
    "add_list": _concatenate,
    "not_equals": _compare,
    **{f"{order}_{t}": _compare for order in ("less", "less_equals", "greater", "greater_equals") for t in TEXT},
}
