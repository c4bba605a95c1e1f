"""Charges: what the calls of an evaluation cost.

In: the name, overload, operands and result of a call. Out: its cost. The evaluator stops when the sum exceeds the
budget.

Source: cel-go's run-time cost tracker; Kubernetes' actual-cost rules; the trackers of the list and set extensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dra_driver.base.versions import Semver
from dra_driver.selectors.check.declarations import REGEX, TRAVERSAL
from dra_driver.selectors.functions.functions import bound, iterate, iterate_pairs
from dra_driver.selectors.functions.lists import is_list
from dra_driver.selectors.functions.named_formats import pattern_size
from dra_driver.selectors.parse.macros import BINDINGS
from dra_driver.selectors.parse.tree import Comprehension, Node
from dra_driver.selectors.values.types import go_type
from dra_driver.selectors.values.values import (
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
    is_map,
    list_size,
    map_items,
    map_size,
    unfold,
)

_CALL, _ALLOCATION = 1, 10
_CHEAP = frozenset({CelQuantity, Semver, Ip, Cidr, Url, NamedFormat})
_ADDABLE = frozenset({int, Uint, float, str, bytes, Duration, Timestamp})
_SORTS = ("_sort", "_sortByAssociatedKeys")

_Args = list[Any]
_Rule = Callable[[_Args, Any], int]


def size_of(value: Any) -> int:
    """Return the size by which a value is charged."""
    kind = type(value)
    if isinstance(value, str | bytes):
        return len(value)
    if kind is list or kind is Concat:
        return list_size(value)
    if is_map(value):
        return map_size(value)
    if isinstance(value, Ip):
        return 4 if value.address.version == 4 else 16
    if isinstance(value, Cidr):
        return math.ceil(value.prefix / 8)
    if isinstance(value, Optional) and value.present:
        return size_of(value.value)
    return 1


def charge(function: str, overloads: tuple[str, ...], args: _Args, result: Any, *, newer: bool) -> int:
    """Return the cost of a call; `newer` selects the costs since 1.37."""
    overload = overloads[0] if len(overloads) == 1 else ""
    rule = (_SINCE_1_37.get(overload) if newer else None) or _BY_EXTENSION.get(overload)
    if rule is None and overload.endswith(_SORTS):
        rule = _sort
    rule = rule or _BY_FUNCTION.get(function)
    if rule is not None:
        return rule(args, result)
    if function == "ip" and overload != "cidr_ip":
        return _scaled(args[0])
    if function in {"containsIP", "containsCIDR"}:
        return _contains_network(function, overload, args)
    rule = _BY_OVERLOAD.get(overload)
    return rule(args, result) if rule is not None else 1


def _scaled(value: Any, factor: float = TRAVERSAL) -> int:
    return math.ceil(size_of(value) * factor)


def _first(factor: float = TRAVERSAL) -> _Rule:
    return lambda args, _: _scaled(args[0], factor)


def _list_call(count: int, factor: float = 1.0) -> int:
    return (_to_uint64(count * factor) + _CALL + _ALLOCATION) % 2**64


def _to_uint64(number: float) -> int:
    """Convert a double as the server's machine does: a number that does not fit becomes 2^63, a negative one wraps."""
    if -(2.0**63) <= number < 2.0**64:
        return int(number) % 2**64
    return 2**63


def _require_list(value: Any) -> None:
    """Raise where the server's cost tracker panics because a value is not a list."""
    if not is_list(value):
        missing = "Contains" if type(value) in _ADDABLE else "Add"
        raise CelAbort(
            f"internal error: interface conversion: {go_type(value)} is not traits.Lister: missing method {missing}"
        )


def _squared(values: Any) -> int:
    _require_list(values)
    count = size_of(values)
    factor = 2.0
    if count and is_list(values) and count <= 1_000_000 and type(unfold(values)[0]) in {str, bytes}:
        factor += TRAVERSAL
    return _list_call(count * count, factor)


def _sort(args: _Args, _: Any) -> int:
    return _squared(args[-1])


def _flatten(args: _Args, _: Any) -> int:
    if len(args) == 1:
        return _list_call(size_of(args[0]))
    if type(args[1]) is not int:
        raise CelAbort(
            f"internal error: interface conversion: ref.Val is {go_type(args[1])}, not types.Int",
        )
    return _list_call(size_of(args[0]), float(args[1]))


def _sets(factor: float) -> _Rule:
    return lambda args, _: _CALL + int(size_of(args[0]) * size_of(args[1]) * factor)


def _traversal(value: Any) -> int:
    """Charge for walking a value as a tree of data; strings are charged by their bytes."""
    total, pending, steps = 0, [value], 0
    while pending and steps < 1_000_001:
        steps += 1
        one = pending.pop()
        if type(one) is str:
            total += int(len(one.encode("utf-8", "surrogatepass")) * TRAVERSAL)
        elif type(one) is bytes:
            total += int(len(one) * TRAVERSAL)
        elif is_list(one):
            pending.extend(unfold(one))
        elif is_map(one):
            pending.extend(part for item in map_items(one) for part in item)
        else:
            total += 1
    return total


def _walk(args: _Args, _: Any) -> int:
    return _traversal(args[0])


def _find(args: _Args, _: Any) -> int:
    return math.ceil((1 + size_of(args[0])) * TRAVERSAL) * math.ceil(size_of(args[1]) * REGEX)


def _contains(args: _Args, _: Any) -> int:
    return _scaled(args[0]) * _scaled(args[1])


def _compare(args: _Args, _: Any) -> int:
    return math.ceil(min(size_of(args[0]), size_of(args[1])) * TRAVERSAL)


def _equals(args: _Args, result: Any) -> int:
    return 1 if type(args[0]) in _CHEAP else _compare(args, result)


def _concatenate(args: _Args, _: Any) -> int:
    return math.ceil((size_of(args[0]) + size_of(args[1])) * TRAVERSAL)


def _contains_network(function: str, overload: str, args: _Args) -> int:
    size = size_of(args[0])
    cost = math.ceil(2 * size * TRAVERSAL)
    if function == "containsCIDR":
        cost += math.ceil(size * TRAVERSAL) + 1
    return cost + (_scaled(args[1]) if overload.endswith("_string") else 0)


def _validate(args: _Args, _: Any) -> int:
    pattern = pattern_size(args[0]) if type(args[0]) is NamedFormat else 1
    return math.ceil((size_of(args[1]) + 1) * TRAVERSAL) * math.ceil(pattern * REGEX)


_BY_EXTENSION: dict[str, _Rule] = {
    "list_slice": lambda _, result: _list_call(size_of(result)),
    "lists_range": lambda _, result: _list_call(size_of(result)),
    "list_reverse": lambda _, result: _list_call(size_of(result)),
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": lambda args, _: _squared(args[0]),
    "list_sets_contains_list": _sets(1.0),
    "list_sets_intersects_list": _sets(1.0),
    "list_sets_equivalent_list": _sets(2.0),
}
_BY_FUNCTION: dict[str, _Rule] = {
    "check": lambda _, __: 350_000,
    **dict.fromkeys(["isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"], _walk),
    **dict.fromkeys(["url", "lowerAscii", "upperAscii", "substring", "trim"], _first()),
    **dict.fromkeys(["replace", "split"], _first(2 * TRAVERSAL)),
    "join": lambda _, result: _scaled(result, 2 * TRAVERSAL),
    "find": _find,
    "findAll": _find,
    **dict.fromkeys(["cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"], _first()),
    "ip.isCanonical": _first(2 * TRAVERSAL),
    "validate": _validate,
    "includes": lambda args, _: size_of(args[0]),
    "_==_": _equals,
    "_!=_": _compare,
}
_BY_OVERLOAD: dict[str, _Rule] = {
    **dict.fromkeys(
        [
            "starts_with_string",
            "ends_with_string",
            "string_to_bytes",
            "bytes_to_string",
            "strings_quote",
            "string_format",
        ],
        _first(),
    ),
    "in_list": lambda args, _: size_of(args[1]),
    **{
        f"{order}_{kind}": _compare
        for order in ("less", "less_equals", "greater", "greater_equals")
        for kind in ("string", "bytes")
    },
    "add_string": _concatenate,
    "add_bytes": _concatenate,
    "matches_string": _find,
    "contains_string": _contains,
}
_SINCE_1_37: dict[str, _Rule] = {
    "starts_with_string": lambda args, _: _scaled(args[1]),
    "ends_with_string": lambda args, _: _scaled(args[1]),
    "dra_includes_dyn_dyn": _walk,
    "matches": _find,
}


# Scopes: the local variables of comprehensions, and the loops that set them.

_UNSET = object()


class Variable:
    """A local variable that is initialised on first use, or that holds the error with which its step ended."""

    __slots__ = ("init", "scope", "value")

    def __init__(self, init: Node | None, scope: dict[str, Variable], value: Any = _UNSET) -> None:
        self.init = init
        self.scope = scope
        self.value = value


class Scopes:
    """The part of the interpreter that handles local variables. The interpreter itself supplies `eval`."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope: dict[str, Variable] = {}

    def eval(self, node: Node) -> Any:
        """Evaluate a node."""
        raise NotImplementedError

    def variable(self, found: Variable) -> Any:
        """Return the value of a local variable. Raises: the CelError that it holds."""
        if found.value is _UNSET:
            assert found.init is not None  # noqa: S101
            outer, self._scope = self._scope, found.scope
            try:
                found.value = bound(self.eval(found.init))
            except CelError as error:
                found.value = error
            finally:
                self._scope = outer
        if type(found.value) is CelError:
            raise found.value.with_traceback(None)  # each raise adds a line to it
        return found.value

    def comprehension(self, node: Comprehension) -> Any:
        """Evaluate a binding or a loop."""
        outer = self._scope
        accu = Variable(node.init, outer)
        if node.macro in BINDINGS:
            self._scope = {**outer, node.accu: accu}
            try:
                return self.eval(node.result)
            finally:
                self._scope = outer
        return self._fold(node, outer, accu)

    def _fold(self, node: Comprehension, outer: dict[str, Variable], accu: Variable) -> Any:
        holder = self.eval(node.range)
        pairs = iterate_pairs(holder) if node.var2 else [(element, None) for element in iterate(holder)]
        accu.value = self.eval(node.init)
        if type(accu.value) is CelMap:
            accu.value = CelMap(dict(accu.value.items))  # never change a constant
        scope = {**outer, node.accu: accu}
        first, second = Variable(None, outer), Variable(None, outer)
        inner = {**scope, node.var: first}
        if node.var2:
            inner[node.var2] = second
        try:
            for key, value in pairs:
                first.value, second.value = key, value
                self._scope = inner
                if not self._goes_on(node.cond):
                    break
                try:
                    accu.value = self.eval(node.step)
                except CelError as error:
                    accu.value = error
            self._scope = scope
            return self.eval(node.result)
        finally:
            self._scope = outer

    def _goes_on(self, condition: Node) -> bool:
        try:
            return self.eval(condition) is not False
        except CelError:
            return True
