"""What each function costs in the estimate, and how large its result may be.

In: a call and what is known about its operands. Out: an `Estimate`. A function that is not listed costs 1, and the
size of its result is unknown. Rules are looked up by overload ids of the list and set extensions first, then by
function names (Kubernetes' own rules, whatever the overload), then by overload ids of the standard library.

The rule: Kubernetes' CEL library cost estimator; cel-go's list and set extensions; cel-go's standard costs.
"""

# ruff: noqa: SIM905  (names read better as words than as a column of quotes)

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dra_driver.selectors.checking.sizes import (
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
from dra_driver.selectors.syntax.nodes import Call, Literal, Node
from dra_driver.selectors.values.types import Type


class Estimate(NamedTuple):
    """The most that a call may cost (with `whole`, including its operands), and the size of its result if known."""

    cost: int
    size: Size | None = None
    whole: bool = False


class Operand(NamedTuple):
    """An operand, with what was known about it when it was visited."""

    node: Node
    path: Path
    known: Size | None

    @property
    def size(self) -> Size | None:
        """The size, or None if it is unknown."""
        return self.known

    @property
    def span(self) -> Size:
        """The size, or the full range if it is unknown."""
        return self.known if self.known is not None else UNKNOWN


Rule = Callable[[Call, str, "Operand | None", list[Operand]], "Estimate | None"]

_CALL, _ALLOCATION = 1, 10
_TEXT = frozenset({"string", "bytes"})


def rule_for(function: str, overload: str, *, newer: bool) -> Rule | None:
    """Find the rule for a call; `newer` selects the rules since 1.37."""
    if newer and overload in _SINCE_1_37:
        return _SINCE_1_37[overload]
    return _BY_EXTENSION.get(overload) or _BY_FUNCTION.get(function) or _BY_OVERLOAD.get(overload)


def _literal_int(operand: Operand, default: int) -> int:
    """Return the value of an int literal, with 0 for a negative one; return the default for any other operand."""
    node = operand.node
    if type(node) is Literal and type(node.value) is int:
        return max(node.value, 0)
    return default


def _list_call(factor: float, size: Size) -> Estimate:
    return Estimate(add(scale(size[1], factor), _CALL + _ALLOCATION), size)


# List and set extensions.


def _slice(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    assert target is not None  # noqa: S101
    count = (_literal_int(args[1], target.span[1]) - _literal_int(args[0], 0)) % 2**64
    return _list_call(1.0, (count, count))


def _range(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    count = _literal_int(args[0], MAX)
    return _list_call(1.0, (count, count))


def _reverse(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else _list_call(1.0, target.span)


def _flatten(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    assert target is not None  # noqa: S101
    return _list_call(float(_literal_int(args[0], MAX) if args else 1), target.span)


def _distinct(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else _list_call(2.0, times(target.span, target.span))


def _sort(_: Call, overload: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    assert target is not None  # noqa: S101
    keys = (args[0] if args else target).span
    factor = 2.0 + TRAVERSAL if overload.split("_")[1] in _TEXT else 2.0
    return _list_call(factor, times(keys, keys))


def _sets(factor: float) -> Rule:
    def rule(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
        return Estimate(add(scale(multiply(args[0].span[1], args[1].span[1]), factor), _CALL))

    return rule


# Kubernetes' rules by function name.


def _constant(cost: int) -> Rule:
    def rule(_: Call, __: str, ___: Operand | None, ____: list[Operand]) -> Estimate | None:
        return Estimate(cost)

    return rule


def _element(operand: Operand) -> tuple[Type, Size] | None:
    """Return the type and size of the elements of a list, or None if the operand is not a container."""
    params = operand.node.type.params
    if not params:
        return None
    size = device_size([*operand.path.steps(), ITEMS]) if operand.path.length else None
    return params[0], size if size is not None else UNKNOWN


def _walk_list(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    element = _element(target)
    if element is None:
        return Estimate(scale(target.span[1], TRAVERSAL))
    return _walk(target, element)


def _includes(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    """Charge for each element of a value that may be a list (since 1.37)."""
    return None if target is None else _walk(target, _element(target))


def _walk(target: Operand, element: tuple[Type, Size] | None) -> Estimate:
    each = 1
    if element is None:
        return Estimate(target.span[1])
    if element[0].kind in _TEXT:
        each = add(1, scale(element[1][1], TRAVERSAL))
    return Estimate(multiply(target.span[1], each))


def _walk_target(_: Call, __: str, target: Operand | None, ___: list[Operand]) -> Estimate | None:
    return None if target is None else Estimate(scale(target.span[1], TRAVERSAL), target.span)


def _walk_first(factor: float = TRAVERSAL, *, sized: bool = False) -> Rule:
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


def _join(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    count, size = target.span, (0, 0)
    element = _element(target)
    if element is not None:
        size = times(count, element[1])
    if args:
        size = plus(size, times(args[0].span, (max(count[0] - 1, 0), max(count[1] - 1, 0))))
    return Estimate(scale(size[1], TRAVERSAL), size)


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
            return Estimate(scale(args[1].known[1] if args[1].known is not None else 1, TRAVERSAL))
    return _compare(node, overload, target, args)


# Standard overloads.


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


def _in_list(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    return Estimate(scale(args[1].span[1], 1.0))


def _matches(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    return None if target is None else Estimate(_regex_cost(target.span, args[0].span))


def _contains(_: Call, __: str, target: Operand | None, args: list[Operand]) -> Estimate | None:
    if target is None:
        return None
    return Estimate(multiply(scale(target.span[1], TRAVERSAL), scale(args[0].span[1], TRAVERSAL)))


def _concatenate(_: Call, overload: str, __: Operand | None, args: list[Operand]) -> Estimate | None:
    size = plus(args[0].span, args[1].span)
    return Estimate(1 if overload == "add_list" else scale(size[1], TRAVERSAL), size)


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

_BY_EXTENSION: dict[str, Rule] = {
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

_BY_FUNCTION: dict[str, Rule] = {
    "check": _constant(350_000),
    **dict.fromkeys(
        "serviceAccount path group resource subresource namespace name allowed reason error errored fieldSelector "
        "labelSelector masked prefixLength family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast "
        "isGlobalUnicast sign asInteger isInteger asApproximateFloat isGreaterThan isLessThan compareTo add sub "
        "major minor patch getScheme getHost getHostname getPort getEscapedPath getQuery format.named".split(),
        _constant(1),
    ),
    **dict.fromkeys("isSorted sum max min indexOf lastIndexOf".split(), _walk_list),
    **dict.fromkeys("lowerAscii upperAscii substring trim".split(), _walk_target),
    "url": _walk_first(sized=True),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "find": _find,
    "findAll": _find,
    **dict.fromkeys("quantity isQuantity semver isSemver cidr isIP isCIDR".split(), _walk_first()),
    "ip": _ip,
    "ip.isCanonical": _walk_first(2 * TRAVERSAL),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "includes": _constant(48),
    "_==_": _equals,
}


def _matches_both(_: Call, __: str, ___: Operand | None, args: list[Operand]) -> Estimate | None:
    return Estimate(_regex_cost(args[0].span, args[1].span)) if len(args) == 2 else None


_SINCE_1_37: dict[str, Rule] = {"dra_includes_dyn_dyn": _includes, "matches": _matches_both}
_BY_OVERLOAD: dict[str, Rule] = {
    "string_format": _format,
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _bytes_to_string,
    "strings_quote": _quote,
    "starts_with_string": _walk_first(),
    "ends_with_string": _walk_first(),
    "in_list": _in_list,
    "matches_string": _matches,
    "contains_string": _contains,
    "add_string": _concatenate,
    "add_bytes": _concatenate,
    "add_list": _concatenate,
    "not_equals": _compare,
    **{f"{order}_{t}": _compare for order in ("less", "less_equals", "greater", "greater_equals") for t in _TEXT},
}
