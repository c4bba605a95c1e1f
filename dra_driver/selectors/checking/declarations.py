"""What one Kubernetes version declares: functions, macros, names, the fields of `device`, and gates.

In: a version, feature gates, an environment ("stored" or "new"). Out: a `Declarations` value that the parser, the
checker and the evaluator read. The facts are data (`tables/kubernetes-<version>.json`); this module only reads them.

An entry of a table may end in `@1.34` (the version that introduced it) and `?Gate`. Stored expressions see everything
in the table. New expressions see what the previous minor version had, and gated entries exactly as the gate is set. An
overload that is declared twice is resolved in the place of its last declaration.

Source: Kubernetes' CEL environment sets (compatibility version N-1 for new expressions).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import CONSUMABLE_CAPACITY, LIST_ATTRIBUTES, VERSIONS, gate_defaults, minor_of
from dra_driver.selectors.engine import Environment
from dra_driver.selectors.syntax.macros import EXPANDERS, Macro
from dra_driver.selectors.values.types import ANY, DYN, Type, parse_type

# The feature gates on which the language of selectors depends.
SELECTOR_GATES = (CONSUMABLE_CAPACITY, LIST_ATTRIBUTES)

_ENTRY = re.compile(
    r"(?P<id>\S+): (?:(?P<receiver>.+?)\.)?\((?P<params>.*)\) -> (?P<result>[^@?]+?)"
    r"(?: @(?P<since>[\d.]+))?(?: \?(?P<gate>\w+))?"
)
_SUFFIX = re.compile(r"(?P<body>[^@?]+?)(?: @(?P<since>[\d.]+))?(?: \?(?P<gate>\w+))?")
_MAX_RESOLUTIONS = 4096


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload. The parameters of a member overload start with the receiver."""

    id: str
    member: bool
    params: tuple[Type, ...]
    result: Type
    variables: tuple[str, ...]


@dataclass(slots=True)
class Declarations:
    """Everything that an expression can refer to.

    `resolutions` remembers resolved overloads from one expression to the next, as (function, style, argument types) →
    (ids, result).
    """

    kubernetes: str
    verdicts: str  # "exact" if recorded verdicts of that version exist, else "derived"
    gates: Mapping[str, bool]
    environment: Environment
    macros: dict[tuple[str, int, bool], Macro]
    identifiers: dict[str, Type]
    device_fields: dict[str, Type]
    result_types: frozenset[Type]
    converts_lists: bool
    shows_sharing: bool  # whether the expression sees allowMultipleAllocations of a device
    quotes_fields: bool  # whether a field may be written between backticks
    resolutions: dict[Any, tuple[tuple[str, ...], Type]] = field(default_factory=dict)
    _rows: dict[str, list[str]] = field(default_factory=dict)
    _overloads: dict[str, tuple[Overload, ...]] = field(default_factory=dict)

    @property
    def function_names(self) -> list[str]:
        """All functions that an expression can call."""
        return [name for name in self._rows if name[0].isalpha() and "@" not in name]

    def overloads(self, function: str) -> tuple[Overload, ...]:
        """Return the overloads of a function in resolution order; empty if there is no such function."""
        found = self._overloads.get(function)
        if found is None:
            last: dict[str, Overload] = {}
            for row in filter(self._visible, self._rows.get(function, ())):
                overload = _read_overload(row)
                last.pop(overload.id, None)
                last[overload.id] = overload
            found = self._overloads[function] = tuple(last.values())
        return found

    def remember(self, key: Any, ids: tuple[str, ...], result: Type) -> None:
        """Keep a resolution that depends only on the types of the arguments."""
        if len(self.resolutions) >= _MAX_RESOLUTIONS:
            self.resolutions.clear()
        self.resolutions[key] = ids, result

    def _visible(self, row: str) -> bool:
        found = _ENTRY.fullmatch(row)
        assert found is not None, row  # noqa: S101
        return is_visible(found["since"], found["gate"], self.kubernetes, self.gates, self.environment)


IsVisible = Callable[[str | None, str | None], bool]
"""Takes the version since which an entry exists, and its gate; returns whether the entry is visible."""


def is_visible(
    since: str | None, gate: str | None, kubernetes: str, gates: Mapping[str, bool], environment: Environment
) -> bool:
    """Return whether an entry of the table is visible in an environment."""
    if environment == "stored":
        return True
    if gate is not None:
        return gates.get(gate, True)
    return since is None or minor_of(since) < minor_of(kubernetes)


def declare(kubernetes: str, gates: Mapping[str, bool] | None, environment: Environment) -> Declarations:
    """Return the declarations of a version; equal arguments return the same object.

    Raises:
        InputError: The version is not one of VERSIONS.
    """
    if kubernetes not in VERSIONS:
        raise InputError(
            "kubernetes-version",
            f"selectors of Kubernetes {kubernetes} are not known",
            hint=f"choose one of {', '.join(VERSIONS)}",
        )
    return _declare(kubernetes, tuple(sorted((gates or {}).items())), environment)


@lru_cache(maxsize=4)
def _table(kubernetes: str) -> dict[str, Any]:
    text = resources.files("dra_driver.selectors").joinpath(f"tables/kubernetes-{kubernetes}.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@lru_cache(maxsize=64)
def _declare(kubernetes: str, overrides: tuple[tuple[str, bool], ...], environment: Environment) -> Declarations:
    table = _table(kubernetes)
    defaults = gate_defaults(minor_of(kubernetes))
    gates = {**{name: defaults[name] for name in SELECTOR_GATES if name in defaults}, **dict(overrides)}
    attribute = _attribute_type(table["attributeType"], gates, environment)

    def visible(since: str | None, gate: str | None) -> bool:
        return is_visible(since, gate, kubernetes, gates, environment)

    results = {
        "any": {ANY},
        "any, and dyn with the gate": {ANY, DYN} if gates.get(LIST_ATTRIBUTES) else {ANY},
        "attribute type": {attribute},
    }[table["resultTypes"]]
    lists = {"never": False, "gate": gates.get(LIST_ATTRIBUTES, False), "always": True}[table["listValues"]]
    return Declarations(
        kubernetes=kubernetes,
        verdicts=table["verdicts"],
        gates=gates,
        environment=environment,
        macros=_macros_of(table["macros"], visible),
        identifiers={name: parse_type(text) for name, text in table["identifiers"].items()},
        device_fields=_fields_of(table["fields"], attribute, visible),
        result_types=frozenset({parse_type("bool"), *results}),
        converts_lists=lists,
        shows_sharing=gates.get(CONSUMABLE_CAPACITY, False),
        quotes_fields=table["quotedFields"],
        _rows=table["functions"],
    )


def _macros_of(rows: Iterable[str], visible: IsVisible) -> dict[tuple[str, int, bool], Macro]:
    macros = {}
    for row in rows:
        name, arity, member, since = _read_macro(row)
        if visible(since, None):
            macros[name, arity, member] = EXPANDERS[name, arity, member]
    return macros


def _fields_of(rows: Mapping[str, str], attribute: Type, visible: IsVisible) -> dict[str, Type]:
    fields = {}
    for name, row in rows.items():
        found = _SUFFIX.fullmatch(row)
        assert found is not None, row  # noqa: S101
        if visible(found["since"], found["gate"]):
            fields[name] = parse_type(found["body"].replace("attribute", attribute.kind))
    return fields


def _attribute_type(row: dict[str, str], gates: Mapping[str, bool], environment: Environment) -> Type:
    if row.get("gate") and gates.get(row["gate"]):
        return DYN
    return parse_type(row[environment])


def _read_macro(row: str) -> tuple[str, int, bool, str | None]:
    found = _SUFFIX.fullmatch(row)
    assert found is not None, row  # noqa: S101
    name, _, arity = found["body"].partition("/")
    return name.removeprefix("x."), int(arity), name.startswith("x."), found["since"]


def _read_overload(row: str) -> Overload:
    found = _ENTRY.fullmatch(row)
    assert found is not None, row  # noqa: S101
    signature = f"({', '.join(part for part in (found['receiver'], found['params']) if part)})"
    params = parse_type("f" + signature).params if signature != "()" else ()
    result = parse_type(found["result"])
    variables: dict[str, None] = {}
    for t in (*params, result):
        _collect(t, variables)
    return Overload(found["id"], found["receiver"] is not None, params, result, tuple(variables))


def _collect(t: Type, into: dict[str, None]) -> None:
    if t.kind == "param":
        into[t.name] = None
    for inner in t.params:
        _collect(inner, into)
