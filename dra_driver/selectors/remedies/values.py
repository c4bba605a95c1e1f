"""Values that can't be what the author meant.

These are amounts and versions that can't be read, a text searched with `in`, a number in quotes, and a text in the
wrong case. In: a tree with the values that devices have. Out: mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.selectors.remedies.literal_texts import quantity_text, version_text
from dra_driver.selectors.remedies.mistake import Mistake, WrittenExpression, place_of, quoted
from dra_driver.selectors.syntax.nodes import Call, ListLiteral, Literal, Node

_EQUAL = frozenset({"_==_", "_!=_"})
_SEARCHES = frozenset({"contains", "startsWith", "endsWith"})


def value_mistakes(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the literals and searches that can't be what the author meant."""
    for node in written.nodes():
        if type(node) is not Call:
            continue
        yield from _unreadable(written, node)
        if node.function == "@in":
            yield from _membership(written, *node.args)
        elif node.function in _EQUAL:
            for value, literal in (node.args, node.args[::-1]):
                if type(literal) is Literal:
                    yield from _other_type(written, value, literal)
                    yield from _other_case(written, value, literal, "")
        elif node.function in _SEARCHES and node.target is not None and type(node.args[0]) is Literal:
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
