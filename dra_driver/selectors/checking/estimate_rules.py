"""What each function costs in the estimate, and how large its result may be.

In: a call and what is known about its operands. Out: an `Estimate`. A function that is not listed costs 1, and the
size of its result is unknown. Rules are looked up by overload ids of the list and set extensions first, then by
function names (Kubernetes' own rules, whatever the overload), then by overload ids of the standard library.

Source: Kubernetes' CEL library cost estimator; cel-go's list and set extensions; cel-go's standard costs.
"""

# ruff: noqa: SIM905  (names read better as words than as a column of quotes)

from __future__ import annotations

from dra_driver.selectors.checking.estimate_lists import (
    LISTS_BY_EXTENSION,
    LISTS_BY_FUNCTION,
    LISTS_BY_OVERLOAD,
    LISTS_SINCE_1_37,
)
from dra_driver.selectors.checking.estimate_texts import (
    TEXTS_BY_FUNCTION,
    TEXTS_BY_OVERLOAD,
    TEXTS_SINCE_1_37,
    walk_first,
)
from dra_driver.selectors.checking.estimate_values import TEXT, Estimate, Operand, Rule
from dra_driver.selectors.checking.sizes import REGEX, TRAVERSAL, add, plus, scale
from dra_driver.selectors.syntax.nodes import Call


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
            return Estimate(scale(args[1].known[1] if args[1].known is not None else 1, TRAVERSAL))
    return _compare(node, overload, target, args)


# Standard overloads.


def _concatenate(_: Call, overload: str, __: Operand | None, args: list[Operand]) -> Estimate | None:
    size = plus(args[0].span, args[1].span)
    return Estimate(1 if overload == "add_list" else scale(size[1], TRAVERSAL), size)


_BY_FUNCTION: dict[str, Rule] = {
    "check": _constant(350_000),
    **dict.fromkeys(
        "serviceAccount path group resource subresource namespace name allowed reason error errored fieldSelector "
        "labelSelector masked prefixLength family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast "
        "isGlobalUnicast sign asInteger isInteger asApproximateFloat isGreaterThan isLessThan compareTo add sub "
        "major minor patch getScheme getHost getHostname getPort getEscapedPath getQuery format.named".split(),
        _constant(1),
    ),
    **LISTS_BY_FUNCTION,
    **TEXTS_BY_FUNCTION,
    **dict.fromkeys("quantity isQuantity semver isSemver cidr isIP isCIDR".split(), walk_first()),
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
