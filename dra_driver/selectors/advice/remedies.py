"""Amounts and versions that are compared by operators, or with texts and numbers; CEL supports neither.

In: a tree that may have type errors. Out: mistakes, each corrected with `compareTo`, or by wrapping the text or number
in `quantity()` or `semver()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from dra_driver.base.quantity import Quantity, QuantityError, interpret
from dra_driver.base.versions import Semver, SemverError, normalize
from dra_driver.selectors.advice.habits import habit_mistakes
from dra_driver.selectors.advice.mistakes import (
    KnownNames,
    Mistake,
    WrittenExpression,
    place_mistakes,
    place_of,
    quoted,
)
from dra_driver.selectors.advice.spelling import spelling_mistakes
from dra_driver.selectors.check.checker import check
from dra_driver.selectors.check.declarations import Declarations
from dra_driver.selectors.parse.lexer import room_for
from dra_driver.selectors.parse.parser import parse
from dra_driver.selectors.parse.tree import Call, ListLiteral, Literal, Node
from dra_driver.selectors.values.values import check_cancelled

# Texts of amounts and versions: the forms that people write, converted to those that Kubernetes reads.

_AMOUNT = re.compile(r"\s*(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?P<unit>[a-zA-Z]{0,8})\s*")
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+\Z")
_UNITS = {
    **{f"{letter}{ending}": f"{letter.upper()}i" for letter in "kmgtp" for ending in ("i", "ib", "ibyte", "ibytes")},
    **{f"{letter}{ending}": letter.upper() for letter in "mgtp" for ending in ("b", "byte", "bytes")},
    "b": "", "bytes": "", "kb": "k", "k": "k", "g": "G", "t": "T", "p": "P",
}  # fmt: skip


def exponent_of(text: str) -> int:
    """Return the exponent of a quantity such as "1e3", as Kubernetes reads it; 0 if there is none.

    >>> exponent_of("1e3"), exponent_of("15E-6"), exponent_of("1E"), exponent_of("40Gi")
    (3, -6, 0, 0)
    """
    found = _EXPONENT.search(text)
    try:
        return interpret(found[0])[1] if found else 0
    except QuantityError:
        return 0


def quantity_text(text: str) -> str | None:
    """Return a text that quantity() reads: the text itself, or with its unit corrected.

    >>> quantity_text("40GiB"), quantity_text("40 GB"), quantity_text("40Gi"), quantity_text("many")
    ('40Gi', '40G', '40Gi', None)
    """
    try:
        Quantity.parse(text)
    except QuantityError:
        found = _AMOUNT.fullmatch(text)
        unit = found["unit"] if found else ""
        if found is None or (unit and unit.lower() not in _UNITS):
            return None
        return found["number"] + (_UNITS[unit.lower()] if unit else "")
    return text


def version_text(text: str) -> str | None:
    """Return a text that semver() reads: the text itself, or with its missing parts added.

    >>> version_text("570"), version_text("v12.4"), version_text("570.1.2"), version_text("new")
    ('570.0.0', '12.4.0', '570.1.2', None)
    """
    try:
        Semver.parse(text)
    except SemverError:
        try:
            better = normalize(text)
            Semver.parse(better)
        except SemverError:
            return None
        return better
    return text


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


# Values that can't be what the author meant.

_EQUALITY = frozenset({"_==_", "_!=_"})
_SEARCHES = frozenset({"contains", "startsWith", "endsWith"})


def value_mistakes(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the literals and searches that can't be what the author meant."""
    for node in written.nodes():
        if type(node) is not Call:
            continue
        yield from _unreadable(written, node)
        if node.function == "@in":
            yield from _membership(written, *node.args)
        elif node.function in _EQUALITY:
            for value, literal in (node.args, node.args[::-1]):
                if type(literal) is Literal:
                    yield from _other_type(written, value, literal)
                    yield from _other_case(written, value, literal, "")
        elif node.function in _SEARCHES and node.target is not None and node.args and type(node.args[0]) is Literal:
            yield from _other_case(written, node.target, node.args[0], node.function)


def _unreadable(written: WrittenExpression, node: Call) -> Iterator[Mistake]:
    """Report quantity("40GB") and semver("570"), which fail on every device."""
    if node.function not in {"quantity", "semver"} or node.target is not None or len(node.args) != 1:
        return
    literal = node.args[0]
    if type(literal) is not Literal or type(literal.value) is not str:
        return
    better = quantity_text(literal.value) if node.function == "quantity" else version_text(literal.value)
    if better is not None and better != literal.value:
        what = "an amount has a unit such as Gi or G" if node.function == "quantity" else "a version has three parts"
        message = f'{node.function}("{literal.value}") can\'t be read: {what}'
        yield written.mistake("bad-literal", message, literal, quoted(better))


def _membership(written: WrittenExpression, value: Node, holder: Node) -> Iterator[Mistake]:
    if type(holder) is ListLiteral:
        for element in holder.elements:
            if type(element) is Literal:
                yield from _other_type(written, value, element)
                yield from _other_case(written, value, element, "")
    elif type(value) is Literal and type(value.value) is str and written.kind(holder) == "string":
        whole = next(n for n in written.nodes() if type(n) is Call and n.function == "@in" and n.args[1] is holder)
        text = f"{written.text(holder)}.contains({written.text(value)})"
        message = "`in` looks for an element of a list, and fails on a text: .contains(…) searches a text"
        yield written.mistake("wrong-type", message, whole, text)


def _other_type(written: WrittenExpression, value: Node, literal: Literal) -> Iterator[Mistake]:
    """Report a number or bool in quotes, or a text without them: no value of the name can equal it."""
    kind, wanted, place = written.kind(value), literal.value, place_of(value)
    if place is None or kind not in {"int", "bool", "string"}:
        return
    better = ""
    if type(wanted) is str and kind == "int" and wanted.isascii() and wanted.isdigit() and len(wanted) < 19:
        better = str(int(wanted))
    elif type(wanted) is str and kind == "bool" and wanted.lower() in {"true", "false"}:
        better = wanted.lower()
    elif type(wanted) is int and kind == "string":
        better = quoted(written.text(literal))
    if better:
        nouns = {"int": "a number", "bool": "true or false", "string": "a text"}
        message = f"{place.name} is {nouns[kind]}: {written.text(literal)} equals none of its values"
        yield written.mistake("wrong-type", message, literal, better)


def _other_case(written: WrittenExpression, value: Node, literal: Literal, search: str) -> Iterator[Mistake]:
    """Report a text that devices have only with other upper and lower case."""
    place, wanted = place_of(value), literal.value
    if place is None or type(wanted) is not str or not wanted or written.kind(value) != "string":
        return
    known = sorted(one for one in written.names.values(place) if type(one) is str)
    if any(_parts(one, wanted, search) == wanted for one in known):
        return
    meant = next((part for one in known if (part := _parts(one, wanted, search)).lower() == wanted.lower()), "")
    if meant:
        message = f"no device has {quoted(wanted)} in {place.name}, but {quoted(meant)}: case matters"
        yield written.mistake("wrong-case", message, literal, quoted(meant))


def _parts(known: str, wanted: str, search: str) -> str:
    """Return the part of a known text that a search compares with the wanted one."""
    if search == "startsWith":
        return known[: len(wanted)]
    if search == "endsWith":
        return known[-len(wanted) :]
    if search == "contains":
        at = known.find(wanted)
        at = at if at >= 0 else known.lower().find(wanted.lower())
        return known[at : at + len(wanted)] if at >= 0 else ""
    return known


# Remedies: what to write instead of an expression that does not mean what its author wanted.

_MAX_ROUNDS = 16
_MAX_CHARACTERS = 10_240  # the API server refuses longer expressions anyway
_FRAMES = 40_000
_SHALLOW = 200  # characters


@dataclass(frozen=True, slots=True)
class Remedy:
    """What is wrong, a sentence each, and the better expression; "" where there is none that compiles."""

    sentences: tuple[str, ...]
    better: str


def remedy(
    expression: str, declarations: Declarations, names: KnownNames, compiles: Callable[[str], bool]
) -> Remedy | None:
    """Return the remedy for an expression, or None if no rule here finds the mistake."""
    text, sentences, seen = expression, [], {expression}
    for _ in range(_MAX_ROUNDS):
        check_cancelled()
        found = [one for one in mistakes(text, declarations, names) if one.text not in seen]
        sentences += [one.message for one in found if not one.text]
        mistake = next((one for one in found if one.text), None)
        if mistake is None:
            break
        text = mistake.text
        seen.add(text)
        sentences.append(mistake.message)
    if not sentences:
        return None
    return Remedy(tuple(dict.fromkeys(sentences)), text if text != expression and compiles(text) else "")


def mistakes(text: str, declarations: Declarations, names: KnownNames) -> Iterator[Mistake]:
    """Yield the mistakes of an expression; if it can't be parsed, only those of spelling."""
    if len(text) > _MAX_CHARACTERS:
        return
    with room_for(_FRAMES if len(text) > _SHALLOW else 0):
        root, _ = parse(text, declarations.macros, quotes_fields=declarations.quotes_fields)
        if root is None:
            found = list(spelling_mistakes(text))
        else:
            check(root, declarations)
            found = list(mistakes_of(WrittenExpression(text, root, names)))
    yield from found


def mistakes_of(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the mistakes in a tree."""
    yield from place_mistakes(written)
    yield from operator_mistakes(written)
    yield from value_mistakes(written)
    yield from habit_mistakes(written)
