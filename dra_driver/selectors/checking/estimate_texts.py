"""What functions of texts and patterns cost, and how large their results may be.

Source: Kubernetes' CEL library cost estimator; cel-go's standard costs.
"""

from __future__ import annotations

from dra_driver.selectors.checking.estimate_values import Estimate, Operand, Rule
from dra_driver.selectors.checking.sizes import MAX, REGEX, TRAVERSAL, Size, add, multiply, scale
from dra_driver.selectors.syntax.nodes import Call, Literal


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
