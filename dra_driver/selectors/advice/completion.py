"""Completion: candidates for the end of an unfinished expression, from the names and values of some devices.

In: the text before the cursor. Out: candidates with their meaning: of a domain how many names it has, of an attribute
its type, unit and values, of a function its signature. After a dot, only methods that the operand's type has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from dra_driver.base.flags import VENDORS
from dra_driver.selectors.check.declarations import Declarations, Overload
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluate.folds import compile_fragment
from dra_driver.selectors.evaluate.program import DeviceView
from dra_driver.selectors.functions.formats import render
from dra_driver.selectors.parse.lexer import Token, tokenize
from dra_driver.selectors.values.types import DYN, Type, parse_type, type_name

_IN_DOMAIN = re.compile(r"""device\.(attributes|capacity)\[\??(["'])([^"']*)$""")
_IN_NAME = re.compile(r"""device\.(attributes|capacity)\[\??["']([^"']+)["']\](?:\.\??(\w*)|\[\??(["'])([^"']*))$""")
_IN_FIELD = re.compile(r"\bdevice\.(\w*)$")
_IN_METHOD = re.compile(r"[\w\])\"']\.(\w*)$")
_IN_WORD = re.compile(r"(?:^|[^\w.])(\w*)$")
_MAX_VALUES = 3
_WORDS = {"device": "", "true": "", "false": ""}
_OPENING = {")": "(", "]": "[", "}": "{"}
_OPERANDS = frozenset({"ident", "string", *_OPENING})
_UNKNOWN = frozenset({"any", "dyn", "param"})
_ITERATED = frozenset({"list", "map", *_UNKNOWN})


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate: its text, the number of characters before the cursor that it replaces, and its meaning."""

    text: str
    replaces: int
    meaning: str


class Completions:
    """Candidates from the names and values of some devices."""

    def __init__(self, views: Iterable[DeviceView], declarations: Declarations) -> None:
        self._names: dict[str, dict[str, dict[str, dict[str, str]]]] = {"attributes": {}, "capacity": {}}
        for view in views:
            for field, held in (("attributes", view.attributes), ("capacity", view.capacity)):
                for domain, values in held.items():
                    for name, value in values.items():
                        shown = self._names[field].setdefault(domain, {}).setdefault(name, {})
                        if len(shown) <= _MAX_VALUES:
                            shown[render(value)] = type_name(value)
        self._declarations = declarations
        self._fields = {name: kind.long() for name, kind in declarations.device_fields.items()}
        self._member_macros = sorted({name for name, _, is_member in declarations.macros if is_member})
        plain = {name: "macro" for name, _, is_member in declarations.macros if not is_member}
        self._methods: dict[str, list[Overload]] = {}
        for name in declarations.function_names:
            for overload in declarations.overloads(name):
                if overload.member:
                    self._methods.setdefault(name, []).append(overload)
                else:
                    plain[name] = f"{plain[name]} or {_signature(overload)}" if name in plain else _signature(overload)
        functions = {f"{name}(": meaning for name, meaning in plain.items()}
        self._words = sorted((functions | {"cel.bind(": "macro"} | _WORDS).items())

    def complete(self, before: str) -> list[Candidate]:
        """List candidates for the text before the cursor."""
        if found := _IN_DOMAIN.search(before):
            domains = self._names[found[1]]
            rows = [(f"{name}{found[2]}]", f"{len(held)} names") for name, held in sorted(domains.items())]
            return _matching(rows, found[3])
        if found := _IN_NAME.search(before):
            held = self._names[found[1]].get(found[2], {})
            end, begun = (f"{found[4]}]", found[5]) if found[4] else ("", found[3] or "")
            return _matching([(name + end, _meaning(found[2], name, held[name])) for name in sorted(held)], begun)
        if found := _IN_FIELD.search(before):
            return _matching(sorted(self._fields.items()), found[1])
        if found := _IN_METHOD.search(before):
            return _matching(self._methods_of(self._type_of(before[: found.start(1) - 1])), found[1])
        if found := _IN_WORD.search(before):
            return _matching(self._words, found[1]) if found[1] else []
        return []

    def meaning_of(self, field: str, domain: str, name: str) -> str:
        """Return the type, the unit and some values of an attribute or a capacity; "" if no device has it."""
        values = self._names.get(field, {}).get(domain, {}).get(name)
        return _meaning(domain, name, values) if values else ""

    def _type_of(self, before: str) -> Type:
        """Return the type of the operand at the end of a text; an attribute has that of its values on the devices."""
        found = _IN_NAME.search(before.removesuffix('"]').removesuffix("']"))
        if found and "?" not in found[0]:
            kinds = set(self._names[found[1]].get(found[2], {}).get(found[3] or found[5], {}).values())
            if len(kinds) == 1:
                return parse_type(kinds.pop())
        try:
            return compile_fragment(_operand_at_end(before), self._declarations).root.type
        except SelectorCompileError:
            return DYN

    def _methods_of(self, receiver: Type) -> list[tuple[str, str]]:
        """List the methods of a type with their signatures; if the type is not known, all methods."""
        rows = {f"{name}(": "macro" for name in self._member_macros if receiver.kind in _ITERATED}
        for name, overloads in self._methods.items():
            fitting = [overload for overload in overloads if _accepts(overload.params[0], receiver)]
            if fitting:
                rows[f"{name}("] = " or ".join(dict.fromkeys(map(_signature, fitting)))
        return sorted(rows.items())


def _matching(rows: Iterable[tuple[str, str]], begun: str) -> list[Candidate]:
    return [Candidate(text, len(begun), meaning) for text, meaning in rows if text.lower().startswith(begun.lower())]


def _meaning(domain: str, name: str, values: dict[str, str]) -> str:
    """Return the type, the unit and some values of an attribute or a capacity, such as "int (MHz): 1980"."""
    shown = ", ".join(list(values)[:_MAX_VALUES])
    unit = _units().get(f"{domain}/{name}", "")
    kind = next(iter(values.values()))
    return f"{kind}{f' ({unit})' if unit else ''}: {shown}{', …' if len(values) > _MAX_VALUES else ''}"


@cache
def _units() -> dict[str, str]:
    """Return the units of what our drivers publish, by domain/name."""
    from dra_driver.hardware.vendors import load_vendor  # noqa: PLC0415  (only who completes pays for it)

    rows = [(vendor.driver, row) for vendor in VENDORS for row in load_vendor(vendor.name).rows if row.unit]
    return {row.name if "/" in row.name else f"{driver}/{row.name}": row.unit for driver, row in rows}


def _accepts(wanted: Type, given: Type) -> bool:
    return bool(_UNKNOWN & {wanted.kind, given.kind}) or (wanted.kind, wanted.name) == (given.kind, given.name)


def _signature(overload: Overload) -> str:
    """Return a signature without the function's name, such as "Quantity.(Quantity): int"."""
    params = [str(param).replace("kubernetes.", "") for param in overload.params]
    receiver = f"{params.pop(0)}." if overload.member else ""
    return f"{receiver}({', '.join(params)}): {str(overload.result).replace('kubernetes.', '')}"


def _operand_at_end(text: str) -> str:
    """Return the operand, such as `a["x"].b(c)`, with which an unfinished text ends; "" if it ends otherwise."""
    tokens = tokenize(text)[0][:-1]
    start = len(tokens)
    while start and tokens[start - 1][0] in _OPERANDS:
        while start and tokens[start - 1][0] in _OPENING:
            start = _opening(tokens, start - 1)
        if start and tokens[start - 1][0] in _OPERANDS:
            start -= 1
        if start > 1 and tokens[start - 1][0] == "?":
            start -= 1
        if not start or tokens[start - 1][0] != ".":
            break
        start -= 1
    return text[tokens[start][2] :] if start < len(tokens) else ""


def _opening(tokens: Sequence[Token], closing: int) -> int:
    """Return the index of the bracket that the one at index `closing` closes; 0 if there is none."""
    depth = 0
    for index in range(closing, -1, -1):
        kind = tokens[index][0]
        depth += (kind in _OPENING) - (kind in _OPENING.values())
        if depth == 0:
            return index
    return 0
