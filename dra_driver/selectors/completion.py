"""Completion: candidates for the end of an unfinished expression.

In: the text before the cursor, the given devices, declarations. Out: candidates, each with its meaning. Only the
last few characters are examined: this helps with typing and is not a parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.library.rendering import kind_of, render

_IN_DOMAIN = re.compile(r'device\.(attributes|capacity)\[\??"([^"]*)$')
_IN_NAME = re.compile(r'device\.(attributes|capacity)\[\??"([^"]+)"\](?:\.\??(\w*)|\["([^"]*))$')
_IN_FIELD = re.compile(r"\bdevice\.(\w*)$")
_IN_METHOD = re.compile(r"[\w\])\"']\.(\w*)$")
_IN_WORD = re.compile(r"(?:^|[^\w.])(\w*)$")
_MAX_VALUES = 3


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
                            shown[render(value)] = kind_of(value)
        self._fields = {name: kind.long() for name, kind in declarations.device_fields.items()}
        macros = [(name, member) for name, _, member in declarations.macros]
        member = {name for name, is_member in macros if is_member}
        plain = {name for name, is_member in macros if not is_member}
        for name in declarations.function_names:
            for overload in declarations.overloads(name):
                (member if overload.member else plain).add(name)
        self._methods, self._functions = sorted(member), sorted(plain | {"device", "true", "false", "cel.bind"})

    def complete(self, before: str) -> list[Candidate]:
        """List candidates for the text before the cursor."""
        if found := _IN_DOMAIN.search(before):
            domains = self._names[found[1]]
            rows = [(f'{name}"]', f"{len(held)} names") for name, held in sorted(domains.items())]
            return _matching(rows, found[2])
        if found := _IN_NAME.search(before):
            held = self._names[found[1]].get(found[2], {})
            if found[4] is not None:
                return _matching([(f'{name}"]', _meaning(held[name])) for name in sorted(held)], found[4])
            return _matching([(name, _meaning(held[name])) for name in sorted(held)], found[3] or "")
        if found := _IN_FIELD.search(before):
            return _matching(sorted(self._fields.items()), found[1])
        if found := _IN_METHOD.search(before):
            return _matching([(f"{name}(", "method") for name in self._methods], found[1])
        if found := _IN_WORD.search(before):
            rows = [
                (name, "") if name in {"device", "true", "false"} else (f"{name}(", "function")
                for name in self._functions
            ]
            return _matching(rows, found[1]) if found[1] else []
        return []


def _matching(rows: Iterable[tuple[str, str]], begun: str) -> list[Candidate]:
    return [Candidate(text, len(begun), meaning) for text, meaning in rows if text.lower().startswith(begun.lower())]


def _meaning(values: dict[str, str]) -> str:
    shown = ", ".join(list(values)[:_MAX_VALUES])
    return f"{next(iter(values.values()))}: {shown}{', …' if len(values) > _MAX_VALUES else ''}"
