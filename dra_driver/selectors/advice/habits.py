"""What people bring along from other systems: units left out, labels' spellings, wire formats, names of device plugins.

In: a tree that may have type errors, with the names and values that devices have. Out: mistakes, each with the words to
write; `text` is "" where only the author can choose them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from dra_driver.base.flags import VENDORS
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.selectors.advice.mistakes import (
    CAPACITY,
    Mistake,
    NamePlace,
    WrittenExpression,
    place_of,
    quoted,
    steps_of,
)
from dra_driver.selectors.parse.tree import Call, Ident, ListLiteral, Literal, Node, Select, terms_below

_EQUALITY = frozenset({"_==_", "_!=_"})
_ORDER = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_COMPARISONS = frozenset({"compareTo", "isGreaterThan", "isLessThan"})
_LOGICAL = frozenset({"_&&_", "_||_", "!_"})
_OPTIONAL = frozenset({"_?._", "_[?_]"})
_MEBI = 1 << 20
_LEAST = 1 << 28  # bytes; an accelerator has more memory
_WIRE_FIELDS = frozenset({"string", "int", "bool", "version", "value"})  # of the API's objects, not of CEL's
_METHODS = {
    "tolowercase": "lowerAscii", "tolower": "lowerAscii", "lower": "lowerAscii", "touppercase": "upperAscii",
    "toupper": "upperAscii", "upper": "upperAscii", "includes": "contains", "hasprefix": "startsWith",
    "hassuffix": "endsWith", "length": "size", "len": "size", "count": "size", "strip": "trim",
    **{name.lower(): name for name in ("contains", "startsWith", "endsWith", "compareTo", "matches", "orValue")},
}  # fmt: skip


def habit_mistakes(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the mistakes in a tree."""
    yield from _loose_or(written)
    yield from _operand(written, written.root)
    for node in written.nodes():
        if type(node) is Select:
            yield from _wire_field(written, node)
        if type(node) is not Call:
            continue
        yield from _method(written, node)
        if node.function in _LOGICAL:
            for operand in node.args:
                yield from _operand(written, operand)
        elif node.function in _EQUALITY or node.function in _ORDER or node.function in _COMPARISONS:
            yield from _compared(written, node)
        elif node.function == "@in" and type(node.args[1]) is ListLiteral:
            for element in node.args[1].elements:
                yield from _text(written, node.args[0], element)
        elif node.function == "_[_]" and type(node.args[0]) is Ident and node.args[0].name == "device":
            if type(node.args[1]) is Literal and type(node.args[1].value) is str:
                message = "device has fields, no keys"
                yield written.mistake("unknown-name", message, node, f"device.{node.args[1].value}")
        elif node.function in {"semver", "quantity"} and node.target is None and len(node.args) == 1:
            yield from _converted(written, node)
        elif node.function == "matches" and node.args:
            yield from _glob(written, node.args[-1])


def _compared(written: WrittenExpression, node: Call) -> Iterator[Mistake]:
    operands = node.args if node.target is None else [node.target, *node.args]
    if len(operands) != 2:
        return
    for value, other in (operands, operands[::-1]):
        yield from _tiny(written, value, other)
        if node.function in _EQUALITY:
            yield from _text(written, value, other)
            yield from _driver(written, value, other)
            yield from _null(written, node, value, other)
        if node.target is None:
            yield from _unwrapped(written, value, other)


# Amounts, versions and texts.


def _tiny(written: WrittenExpression, value: Node, other: Node) -> Iterator[Mistake]:
    """Report an amount of memory below 1 MiB: its unit was left out."""
    place = place_of(value)
    if place is None or place.field != CAPACITY or type(other) is not Call or other.function != "quantity":
        return
    if not other.args:
        return  # it is not written to its end
    literal = other.args[0]
    known = [int(one.value) for one in written.names.values(place) if isinstance(one, Quantity) and one.scale < 20]
    if type(literal) is not Literal or type(literal.value) is not str:
        return
    if not (min(known) >= _LEAST if known else place.name == "memory"):
        return
    try:
        amount = Quantity.parse(literal.value)
        number = int(amount.value) if 0 <= amount.scale < 20 else 0
    except QuantityError:
        return
    if 0 < number < _MEBI:
        meant = f"{number}Gi" if number < 1024 else f"{number // 1024}Gi" if number % 1024 == 0 else f"{number}Mi"
        message = f"{literal.value} are bytes, and {place.name} has a unit: did you mean {meant}?"
        yield replace(written.mistake("bad-literal", message, literal, quoted(meant)), is_guess=True)


def _converted(written: WrittenExpression, node: Call) -> Iterator[Mistake]:
    """Report semver() of what is a version already, and quantity() of an amount."""
    kind = "version" if node.function == "semver" else "quantity"
    if type(node.args[0]) is not Literal and written.kind(node.args[0]) == kind and place_of(node.args[0]):
        noun = "a version" if kind == "version" else "a quantity"
        message = f"{written.text(node.args[0])} is {noun} already: leave {node.function}() out"
        yield written.mistake("wrong-type", message, node, written.text(node.args[0]))


def _text(written: WrittenExpression, value: Node, other: Node) -> Iterator[Mistake]:
    """Report a text that devices have with other signs between its words, or under another name."""
    place = place_of(value)
    if place is None or type(other) is not Literal or type(other.value) is not str or not other.value:
        return
    known = sorted(one for one in written.names.values(place) if type(one) is str)
    if not known or other.value in known or other.value.lower() in map(str.lower, known):
        return
    same = next((one for one in known if _letters(one) == _letters(other.value)), "")
    if not same:
        if longer := next((one for one in known if other.value.lower() in one.lower()), ""):
            message = (
                f"no {place.name} is {quoted(other.value)} alone, but {quoted(longer)} has it: .contains(…) searches"
            )
            yield Mistake("wrong-case", message, written.text(other), "", start=other.start)
        return
    message = f"no device has {quoted(other.value)} in {place.name}, but {quoted(same)}"
    if elsewhere := written.names.find_value(other.value, domain=place.domain):
        message += f"; {elsewhere.name} has {quoted(other.value)}"
    yield written.mistake("wrong-case", message, other, quoted(same))


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).lower()


def _glob(written: WrittenExpression, pattern: Node) -> Iterator[Mistake]:
    """Report a pattern of a shell where RE2's are read."""
    if type(pattern) is Literal and type(pattern.value) is str and pattern.value.startswith("*"):
        better = pattern.value.replace(".*", "*").replace("*", ".*").removeprefix(".*").removesuffix(".*")
        message = "matches takes a pattern of RE2, which is searched anywhere in the text: * repeats what is before it"
        yield written.mistake("bad-literal", message, pattern, quoted(better))


def _driver(written: WrittenExpression, value: Node, other: Node) -> Iterator[Mistake]:
    """Report the name of a device plugin's resource, or a misspelt one, where a driver is meant."""
    if steps_of(value) != ["driver"] or type(other) is not Literal or type(other.value) is not str:
        return
    drivers = {vendor.driver: vendor.name for vendor in VENDORS}
    given = other.value
    if given in drivers or given in written.names.domains:
        return
    lower = given.lower()
    meant = next((driver for driver, name in drivers.items() if name in re.split(r"\W+", lower)), "")
    meant = meant or next(iter(get_close_matches(lower, drivers, n=1, cutoff=0.8)), "")
    if meant:
        what = "the resource of a device plugin" if "/" in given else "not the name of a driver"
        message = f"{quoted(given)} is {what}: the driver is {meant}"
        yield written.mistake("unknown-name", message, other, quoted(meant))


def _null(written: WrittenExpression, node: Call, value: Node, other: Node) -> Iterator[Mistake]:
    """Report a comparison with null, which no attribute is: one that a device lacks makes the expression fail."""
    place = place_of(value)
    if place is None or type(other) is not Literal or other.value is not None:
        return
    test = f"{'!' if node.function == '_==_' else ''}has({place.text})"
    yield written.mistake(
        "wrong-type", f"no attribute is null; one that a device lacks is tested with {test}", node, test
    )


# Optional values, conditions, and what is no condition.


def _unwrapped(written: WrittenExpression, value: Node, other: Node) -> Iterator[Mistake]:
    """Report an optional value that is compared with a plain one, which it never equals."""
    if type(value) is not Call or value.function not in _OPTIONAL or type(other) is not Literal:
        return
    fallbacks = {str: ('""', '"-"'), bool: ("false", "true"), int: ("0", "-1"), float: ("0.0", "-1.0")}
    if type(other.value) in fallbacks:
        fallback = fallbacks[type(other.value)][not other.value]
        text = f"{written.text(value)}.orValue({fallback})"
        message = f"{written.text(value)} is optional, and equals no plain value: write .orValue({fallback}) behind it"
        yield written.mistake("wrong-type", message, value, text)


def _operand(written: WrittenExpression, node: Node) -> Iterator[Mistake]:
    """Report an operand of && and ||, or a whole expression, that is not true or false."""
    if not hasattr(node, "start"):
        return
    text = written.text(node)
    if type(node) is Call and node.function == "compareTo":
        message = "compareTo gives -1, 0 or 1: compare it, with >= 0 for at least"
        yield written.mistake("wrong-type", message, node, f"{text} >= 0")
    elif type(node) is Call and node.function in _OPTIONAL and (place := place_of(node)):
        kind = written.names.kind(place)
        if kind in {"", "bool"}:
            message = f"{text} is optional: write .orValue(false) behind it"
            yield written.mistake("wrong-type", message, node, f"{text}.orValue(false)")
    elif place := place_of(node):
        yield from _bare(written, node, place)


def _bare(written: WrittenExpression, node: Node, place: NamePlace) -> Iterator[Mistake]:
    kind, text = written.kind(node), written.text(node)
    known = sorted(str(one) for one in written.names.values(place) if isinstance(one, str))
    if (type(node) is Select and node.test) or kind not in {"string", "int", "quantity", "version"}:
        return
    nouns = {"string": "a text", "int": "a number", "quantity": "a quantity", "version": "a version"}
    better = {
        "string": f"{text} == {quoted(known[0])}" if known else "",
        "int": f"{text} > 0",
        "quantity": f'{text}.compareTo(quantity("1Gi")) >= 0',
        "version": f'{text}.compareTo(semver("1.0.0")) >= 0',
    }[kind]
    message = f"{place.name} is {nouns[kind]}, not true or false: compare it"
    if better:
        yield replace(written.mistake("wrong-type", message, node, better), is_guess=True)
    else:
        yield Mistake("wrong-type", message, text, "", start=node.start)


def _loose_or(written: WrittenExpression) -> Iterator[Mistake]:
    """Report `driver && a || b`: the test of the driver does not hold for b."""
    root = written.root
    if type(root) is not Call or root.function != "_||_" or not hasattr(root, "start"):
        return
    first, *others = terms_below(root, {"_||_"})
    tests = terms_below(first, {"_&&_"})
    is_open = type(first) is Call and first.function == "_&&_" and written.expression[: first.start].strip() == ""
    if not is_open or not _tests_driver(tests[0]) or any(_mentions_driver(one) for one in others):
        return
    if any(not hasattr(one, "start") for one in (*tests, *others)):
        return
    guard = written.text(tests[0])
    inner = " && ".join(written.text(one) for one in tests[1:])
    text = f"{guard} && ({' || '.join([inner, *(written.text(one) for one in others)])})"
    message = f"&& binds stronger than ||: what follows || holds without {guard}"
    yield replace(written.mistake("missing-driver-guard", message, root, text), is_guess=True)


def _tests_driver(node: Node) -> bool:
    return type(node) is Call and node.function == "_==_" and any(steps_of(one) == ["driver"] for one in node.args)


def _mentions_driver(node: Node) -> bool:
    return any(_tests_driver(one) for one in terms_below(node, {"_&&_"}))


# Fields and methods of other systems.


def _wire_field(written: WrittenExpression, node: Select) -> Iterator[Mistake]:
    """Report `.string`, `.version` and the like behind a name: the API's objects have them, selectors do not."""
    place = place_of(node.operand)
    if place is None or node.field not in _WIRE_FIELDS or not hasattr(node.operand, "start") or node.test:
        return
    message = f"leave .{node.field} out: in a selector {place.name} is the value itself"
    yield written.mistake("unknown-name", message, node, written.text(node.operand))


def _method(written: WrittenExpression, node: Call) -> Iterator[Mistake]:
    """Report methods of other languages."""
    better = _METHODS.get(node.function.lower(), "")
    if not better or better == node.function or node.type.long() != "*error*":
        return
    value = node.target if node.target is not None else next(iter(node.args), None)
    if value is None or not hasattr(value, "start") or (node.target is None and len(node.args) != 1):
        return
    arguments = ", ".join(written.text(one) for one in node.args) if node.target is not None else ""
    message = f"CEL has no {node.function}: write {better}"
    yield written.mistake("refused", message, node, f"{written.text(value)}.{better}({arguments})")
