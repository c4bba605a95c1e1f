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
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.versions import CONSUMABLE_CAPACITY, LIST_ATTRIBUTES, VERSIONS, Since, gate_defaults, minor_of
from dra_driver.selectors.engine import Environment
from dra_driver.selectors.parse.macros import EXPANDERS, Macro
from dra_driver.selectors.parse.tree import Call, Ident, Node, Select
from dra_driver.selectors.values.types import ANY, DYN, Type, is_optional, parse_type, wrapper_of

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
        "attribute type or wrapper(bool)": {attribute, wrapper_of(parse_type("bool"))},
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


# Sizes and paths: the arithmetic of the cost estimate.

Size = tuple[int, int]

MAX = 2**64 - 1
_TWO_TO_64 = float(2**64)
UNKNOWN: Size = (0, MAX)
ONE: Size = (1, 1)
TRAVERSAL = 0.1  # cost of touching one character of a string
REGEX = 0.25  # cost of one character of a pattern


def add(left: int, right: int) -> int:
    """Add two numbers; the sum saturates at 2^64 - 1."""
    total = left + right
    return min(total, MAX)


def multiply(left: int, right: int) -> int:
    """Multiply two numbers; the product saturates at 2^64 - 1."""
    product = left * right
    return min(product, MAX)


def scale(number: int, factor: float) -> int:
    """Multiply by a cost factor as the server does: in doubles, rounded up, saturating at 2^64 - 1."""
    inexact = float(number)
    if inexact > 0 and factor > 0 and inexact > _TWO_TO_64 / factor:
        return MAX
    scaled = math.ceil(inexact * factor)
    return scaled if scaled < 2**64 else MAX


def union(left: Size, right: Size) -> Size:
    """Return the range that covers both."""
    return min(left[0], right[0]), max(left[1], right[1])


def plus(left: Size, right: Size) -> Size:
    """Add two ranges."""
    return add(left[0], right[0]), add(left[1], right[1])


def times(left: Size, right: Size) -> Size:
    """Multiply two ranges."""
    return multiply(left[0], right[0]), multiply(left[1], right[1])


class Path:
    """A view of the first `length` elements of a backing array that other paths may share."""

    __slots__ = ("array", "length")

    def __init__(self, array: list[str], length: int) -> None:
        self.array = array
        self.length = length

    def append(self, step: str) -> Path:
        """Return a path with one more step; it uses the same array if that has room."""
        if self.length < len(self.array):
            self.array[self.length] = step
            return Path(self.array, self.length + 1)
        array = self.array[: self.length] + [step] + [""] * (max(1, 2 * self.length) - self.length - 1)
        return Path(array, self.length + 1)

    def steps(self) -> list[str]:
        """Return the current steps."""
        return self.array[: self.length]


NO_PATH = Path([], 0)
ITEMS, KEYS, VALUES, INDICES = "@items", "@keys", "@values", "@indices"

# The most characters of a driver name, of a domain and of a name, entries of a map, and characters of a value.
_DRIVER, _DOMAIN, _NAME, _ENTRIES, _VALUE = 63, 63, 32, 32, 64


def device_size(path: list[str]) -> Size | None:
    """Return the size of a value taken from `device`, or None where the server knows none.

    Source: Kubernetes API resource/v1 limits (DeviceMaxDomainLength, DeviceMaxIDLength, DriverNameMaxLength,
    DeviceAttributeMaxValueLength, ResourceSliceMaxAttributesAndCapacitiesPerDevice).
    """
    if not path or path[0] != "device":
        return None
    if len(path) == 1:
        return 0, 0
    field, rest = path[1], path[2:]
    if field in {"driver", "allowMultipleAllocations"}:
        return None if rest else (0, _DRIVER if field == "driver" else 1)
    if field not in {"attributes", "capacity"}:
        return None
    if not rest:
        return 0, _ENTRIES
    outer, rest = rest[0], rest[1:]
    if outer == KEYS:
        return None if rest else (0, _DOMAIN)
    if outer not in {VALUES, ITEMS}:
        return None
    if not rest:
        return 0, _ENTRIES
    inner, rest = rest[0], rest[1:]
    if rest:
        return None
    if inner == KEYS:
        return 0, _NAME
    if field == "attributes":
        return 0, _VALUE
    return (0, 0) if inner in {VALUES, ITEMS} else None


# How the evaluation of a compiled selector differs between Kubernetes versions.

_ACCESS = frozenset({"_[_]", "_[?_]", "_?._", "_?_:_"})


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one version evaluates. `names` maps functions that this version implements differently to table entries."""

    changes_receivers: bool  # add() and sub() change a quantity in place once it no longer fits an int64
    copies_branches: bool  # an optional at the start of a chain, or from a ternary, loses Kubernetes' types
    refuses_plain: bool  # or() and orValue() fail on a value that is not an optional
    newer_costs: bool  # matches(a, b), startsWith(), endsWith() and includes() are charged by size
    names: Mapping[str, str] = field(default_factory=dict)

    def copies(self, branch: Node) -> bool:
        """Return whether an optional from this branch of a ternary is copied; chains of accesses copy it themselves."""
        return self.copies_branches and not _is_chain(branch) and may_be_optional(branch)

    def unwraps(self, holder: Node) -> bool:
        """Return whether an optional from this node is converted to Go when a field is read: the start of a chain."""
        return self.copies_branches and not _is_chain(holder)


def may_be_optional(node: Node) -> bool:
    """Return whether the value of a node can be an optional."""
    return is_optional(node.type) or node.type.kind in {"dyn", "any"}


def _is_chain(node: Node) -> bool:
    return type(node) is Ident or type(node) is Select or (type(node) is Call and node.function in _ACCESS)


_SINCE_1_36 = {name: f"{name} since 1.36" for name in ("url", "isURL", "validate")}
_OLDER = Behaviour(changes_receivers=True, copies_branches=True, refuses_plain=False, newer_costs=False)
_MIDDLE = replace(_OLDER, names=_SINCE_1_36)
_NEWER = Behaviour(
    changes_receivers=False,
    copies_branches=False,
    refuses_plain=True,
    newer_costs=True,
    names=_SINCE_1_36 | {name: f"{name} since 1.37" for name in ("lists.range", "includes", "indexOf", "lastIndexOf")},
)
CHANGING = {name: f"{name} up to 1.36" for name in ("quantity", "add", "sub")}


def behaviour_of(kubernetes: str) -> Behaviour:
    """Return how a version evaluates."""
    minor = minor_of(kubernetes)
    if minor < Since.STRICT_URLS:
        return _OLDER
    return _MIDDLE if minor < Since.CEL_GO_29 else _NEWER
