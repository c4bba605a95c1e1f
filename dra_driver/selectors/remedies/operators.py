"""Amounts and versions that are compared by operators, or with texts and numbers; CEL supports neither.

In: a tree that may have type errors. Out: mistakes, each corrected with `compareTo`, or by wrapping the text or number
in `quantity()` or `semver()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from dra_driver.model.quantity import Quantity
from dra_driver.selectors.remedies.literal_texts import quantity_text, version_text
from dra_driver.selectors.remedies.mistake import Mistake, WrittenExpression, place_of, quoted
from dra_driver.selectors.syntax.nodes import Call, Literal, Node

_ORDER = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
_EQUAL = {"_==_": "==", "_!=_": "!="}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_METHODS = frozenset({"isGreaterThan", "isLessThan", "compareTo"})
_SPECIAL = {"quantity": "kubernetes.Quantity", "version": "kubernetes.Semver"}
_NOUNS = {"quantity": "a quantity", "version": "a version"}
_MEBI, _GIBI = 1 << 20, 1 << 30


def operator_mistakes(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the comparisons that do not compile, or always fail, because of their types."""
    for node in written.nodes():
        if type(node) is not Call:
            continue
        if node.function in _ORDER or node.function in _EQUAL:
            yield from _compared(written, node)
        elif node.function in _METHODS and node.target is not None and len(node.args) == 1:
            yield from _argument(written, node, node.target)


def _compared(written: WrittenExpression, node: Call) -> Iterator[Mistake]:
    operator = _ORDER.get(node.function) or _EQUAL[node.function]
    left, right = node.args
    kinds = written.kind(left), written.kind(right)
    special = next((kind for kind in kinds if kind in _SPECIAL), "")
    if not special or not (hasattr(left, "start") and hasattr(right, "start")):
        return
    if kinds[0] == kinds[1]:
        if operator in _FLIPPED:
            text = f"{written.text(left)}.compareTo({written.text(right)}) {operator} 0"
            rule = "quantity-equality" if special == "quantity" else "string-version"
            plural = "quantities" if special == "quantity" else "versions"
            yield written.mistake(rule, f"{plural} have no operator {operator}: use compareTo", node, text)
        return
    value, literal = (left, right) if kinds[0] == special else (right, left)
    wanted = _wrapped(written, value, literal, special)
    if wanted is None:
        return
    operator = operator if value is left else _FLIPPED.get(operator, operator)
    operator = {"==": ">=", "!=": "<"}.get(operator, operator) if special == "quantity" else operator
    text = f"{written.text(value)}.compareTo({wanted}) {operator} 0"
    rule = "quantity-equality" if special == "quantity" else "string-version"
    message = f"{_last(value, written)} is {_NOUNS[special]}: compare it with compareTo and {wanted}"
    yield written.mistake(rule, message, node, text)


def _argument(written: WrittenExpression, node: Call, target: Node) -> Iterator[Mistake]:
    """Report a text or number that is passed to a method of a quantity or version."""
    [argument] = node.args
    special = written.kind(target)
    if special not in _SPECIAL or type(argument) is not Literal:
        return
    wanted = _wrapped(written, target, argument, special)
    if wanted is not None:
        message = f"{node.function} takes {_NOUNS[special]}, not a {_noun(argument)}: {wanted}"
        yield written.mistake("bad-literal", message, argument, wanted)


def _wrapped(written: WrittenExpression, value: Node, literal: Node, special: str) -> str | None:
    """Return quantity("…") or semver("…") for a literal, or None for another node or an unreadable text."""
    if type(literal) is not Literal or type(literal.value) not in {str, int, float}:
        return None
    text = literal.value if type(literal.value) is str else _plain(literal.value)
    if special == "version":
        better = version_text(text)
        return f"semver({quoted(better)})" if better is not None else None
    better = quantity_text(text)
    if better is not None and type(literal.value) is not str and _is_in_gibibytes(written, value, literal.value):
        better = f"{better}Gi"
    return f"quantity({quoted(better)})" if better is not None else None


def _plain(number: float) -> str:
    """Return a number without an exponent."""
    return format(Decimal(repr(number)).normalize(), "f")


def _is_in_gibibytes(written: WrittenExpression, value: Node, number: float) -> bool:
    """Return whether a bare number can only mean GiB: devices have billions of bytes, and it is below a million."""
    place = place_of(value)
    if place is None or not 0 < number < _MEBI:
        return False
    known = [
        amount.unscaled * 10.0**amount.scale for amount in written.names.values(place) if isinstance(amount, Quantity)
    ]
    return min(known) >= _GIBI / 4 if known else place.name == "memory"


def _last(node: Node, written: WrittenExpression) -> str:
    place = place_of(node)
    return place.name if place else written.text(node)


def _noun(literal: Literal) -> str:
    return "text" if type(literal.value) is str else "number"
