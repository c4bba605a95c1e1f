"""Bindings: what type parameters stand for, and which type is assignable to which.

In: types found by the checker. Out: whether one is assignable to another, and what its parameters are bound to if so.
Source: cel-go's checker (assignability, substitution, occurs check).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dra_driver.base.versions import Semver
from dra_driver.selectors.values.values import (
    CelError,
    CelMap,
    CelQuantity,
    Cidr,
    Concat,
    Duration,
    Ip,
    MessageValue,
    NamedFormat,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Url,
    format_double,
    is_map,
)

# The types of the dialect: what they are, and how messages print them.

MAX_SIZE = 400  # nodes of one type; each binding of a hostile expression can double its type


class TypeTooLarge(Exception):
    """A type has grown beyond the type of any sensible expression."""


_LONG_NAMES = {
    "any": "google.protobuf.Any",
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "null": "null_type",
    "error": "*error*",
}


class Type:
    """One type. `kind` is its family; `name` names opaque, struct and parameter types; equal types have equal keys."""

    __slots__ = ("closed", "key", "kind", "name", "params", "size")

    size: int
    closed: bool
    key: str

    def __init__(self, kind: str, name: str = "", params: tuple[Type, ...] = ()) -> None:
        self.kind = kind
        self.name = name or kind
        self.params = params
        if params:
            self.size = 1 + sum(param.size for param in params)
            if self.size > MAX_SIZE:
                raise TypeTooLarge
            self.closed = all(param.closed for param in params)
            self.key = f"{self.name}({', '.join([param.key for param in params])})"
        else:
            self.size = 1
            self.closed = kind != "param"
            self.key = f"${name}" if kind == "param" else self.name

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Type) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        """Format the type as checker messages do: short names, parameters in parentheses."""
        if self.kind == "error":
            return "!error!"
        if self.params:
            return f"{self.name}({', '.join([str(param) for param in self.params])})"
        return self.name

    def long(self) -> str:
        """Format the type as the result-type message does: protobuf names for the well-known types."""
        if self.params:
            return f"{self.name}({', '.join([param.long() for param in self.params])})"
        return _LONG_NAMES.get(self.kind, self.name)


BOOL = Type("bool")
INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
STRING = Type("string")
BYTES = Type("bytes")
NULL = Type("null")
DYN = Type("dyn")
ANY = Type("any")
ERROR = Type("error")
DURATION = Type("duration")
TIMESTAMP = Type("timestamp")
TYPE = Type("type")

_NAMED = {t.kind: t for t in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, DYN, ANY, DURATION, TIMESTAMP, TYPE)}
_OPAQUE_NAMES = {"net.IP", "net.CIDR", "optional_type"}

NULLABLE = frozenset({"opaque", "struct", "any", "duration", "timestamp", "wrapper"})
WILD = frozenset({"dyn", "any", "error"})


def list_of(element: Type) -> Type:
    """Return list(element)."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return map(key, value)."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """Return optional_type(value)."""
    return Type("opaque", "optional_type", (value,))


def type_of(inner: Type) -> Type:
    """Return type(inner)."""
    return Type("type", "type", (inner,))


def wrapper_of(inner: Type) -> Type:
    """Return the nullable protobuf wrapper of a primitive type."""
    return Type("wrapper", "wrapper", (inner,))


def param(name: str) -> Type:
    """Return a type parameter."""
    return Type("param", name)


def is_optional(t: Type) -> bool:
    """Return whether the type is an optional."""
    return t.kind == "opaque" and t.name == "optional_type"


@lru_cache(maxsize=1024)
def parse_type(text: str) -> Type:
    """Read a type expression of the overload table, such as `map(string, optional_type(V))`.

    Single capital letters are parameters, dotted names are structs, and `net.…` is opaque.
    """
    name, paren, rest = text.partition("(")
    if not paren:
        if name in _NAMED:
            return _NAMED[name]
        if len(name) == 1 and name.isupper():
            return param(name)
        if name in {"list", "map"}:
            raise ValueError(f"type {text} needs parameters")
        return Type("opaque" if name in _OPAQUE_NAMES else "struct", name)
    params = tuple(parse_type(part) for part in _split(rest[:-1]))
    kind = name if name in {"list", "map", "type"} else "opaque"
    return Type(kind, name, params)


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def equal_or_less_specific(left: Type, right: Type) -> bool:
    """Return whether `left` is equal to `right` or less specific than it."""
    if left.kind in {"dyn", "any", "param"}:
        return True
    if right.kind in {"dyn", "any", "param"} or left.kind != right.kind:
        return False
    if left.kind in {"opaque", "list", "map"}:
        if left.name != right.name or len(left.params) != len(right.params):
            return False
        for mine, theirs in zip(left.params, right.params, strict=True):  # noqa: SIM110  (no generator frames)
            if not equal_or_less_specific(mine, theirs):
                return False
        return True
    return left.kind == "type" or left == right


def most_general(left: Type, right: Type) -> Type:
    """Return the more general of two types that unify."""
    return left if equal_or_less_specific(left, right) else right


class Bindings:
    """What the type parameters of one expression are bound to.

    A trail of changes undoes a failed attempt, so a failed overload costs only what it touched, not the whole store.
    """

    __slots__ = ("_bound", "_fresh", "_trail")

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._trail: list[tuple[str, Type | None]] = []
        self._fresh = 0

    def fresh(self) -> Type:
        """Make a new type variable."""
        variable = Type("param", f"_var{self._fresh}")
        self._fresh += 1
        return variable

    def assignable(self, left: Type, right: Type) -> bool:
        """Return whether the types unify; bindings are kept only if they do."""
        if left is right and left.closed:
            return True
        mark = len(self._trail)
        if self._assign(left, right):
            return True
        self._roll_back(mark)
        return False

    def assignable_all(self, lefts: list[Type], rights: list[Type]) -> bool:
        """Return whether two lists of types unify pairwise; bindings are kept only if all do."""
        if len(lefts) != len(rights):
            return False
        mark = len(self._trail)
        for left, right in zip(lefts, rights, strict=True):
            if not self._assign(left, right):
                self._roll_back(mark)
                return False
        return True

    def substitute(self, t: Type, *, unbound_to_dyn: bool) -> Type:
        """Replace bound parameters by their types; on request also replace unbound ones by dyn."""
        if t.closed:
            return t
        if t.kind == "param":
            bound = self._bound.get(t.name)
            if bound is not None:
                return self.substitute(bound, unbound_to_dyn=unbound_to_dyn)
            return DYN if unbound_to_dyn else t
        params = []
        for inner in t.params:
            params.append(self.substitute(inner, unbound_to_dyn=unbound_to_dyn))  # noqa: PERF401  (no extra frame)
        return Type(t.kind, t.name, tuple(params))

    def _roll_back(self, mark: int) -> None:
        while len(self._trail) > mark:
            name, old = self._trail.pop()
            if old is None:
                del self._bound[name]
            else:
                self._bound[name] = old

    def _bind(self, name: str, t: Type) -> None:
        self._trail.append((name, self._bound.get(name)))
        self._bound[name] = t

    def _assign(self, left: Type, right: Type) -> bool:
        if right.kind == "param":
            valid, had = self._substitutes(left, right)
            if valid:
                return True
            if had:
                return False
        if left.kind == "param":
            return self._substitutes(right, left)[0]
        if left.kind in WILD or right.kind in WILD:
            return True
        if left.kind == "null":
            return right.kind in NULLABLE or right.kind == "null"
        if right.kind == "null":
            return left.kind in NULLABLE
        if left.kind == "wrapper" or right.kind == "wrapper":
            return (left.params[0] if left.kind == "wrapper" else left) == (
                right.params[0] if right.kind == "wrapper" else right
            )
        if left.kind == "type":
            return right.kind == "type"
        if not left.params:
            return left == right
        if left.kind != right.kind or left.name != right.name or len(left.params) != len(right.params):
            return False
        for mine, theirs in zip(left.params, right.params, strict=True):  # noqa: SIM110  (no generator frames)
            if not self._assign(mine, theirs):
                return False
        return True

    def _substitutes(self, t: Type, variable: Type) -> tuple[bool, bool]:
        """Return whether `t` can stand for the variable, and whether the variable was bound already."""
        if t.kind == "param" and t.name == variable.name:
            return True, True
        bound = self._bound.get(variable.name)
        if bound is None:
            if self._occurs(variable, t):
                return False, False
            self._bind(variable.name, t)
            return True, False
        if t == bound:
            return True, True
        if not self._assign(t, bound):
            return False, True
        general = most_general(t, bound)
        if not self._occurs(variable, general):
            self._bind(variable.name, general)
        return True, True

    def _occurs(self, variable: Type, within: Type) -> bool:
        if within.closed:
            return False
        if within.kind == "param":
            if within.name == variable.name:
                return True
            bound = self._bound.get(within.name)
            return bound is not None and self._occurs(variable, bound)
        for inner in within.params:  # noqa: SIM110  (no generator frames)
            if self._occurs(variable, inner):
                return True
        return False

    def join(self, previous: Type | None, current: Type) -> Type:
        """Return the common type of one more element (`current`) and those before it (`previous`, None if none)."""
        if previous is None:
            return current
        if self.assignable(previous, current):
            return most_general(previous, current)
        return DYN


# The names of run-time types, as messages print them.

_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    Concat: "list",
    dict: "map",
    CelMap: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Optional: "optional_type",
    TypeValue: "type",
    CelQuantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Ip: "net.IP",
    Cidr: "net.CIDR",
    Url: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
}


def type_name(value: Any) -> str:
    """Return the name of a value's run-time type as messages print it."""
    kind = type(value)
    if kind is MessageValue:
        return str(value.name)
    name = _NAMES.get(kind)
    return name if name is not None else "map" if isinstance(value, dict) else kind.__name__


_RUNTIME_NAMES = {
    "null": "null_type",
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "any": "google.protobuf.Any",
}


def runtime_type_name(t: Type) -> str:
    """Return the name of a type when it is used as a value."""
    return _RUNTIME_NAMES.get(t.kind, t.name)


_GO_TYPES: dict[type, str] = {
    CelError: "*types.Err",
    list: "*types.baseList",
    Concat: "*types.concatList",
    bool: "types.Bool",
    int: "types.Int",
    Uint: "types.Uint",
    float: "types.Double",
    str: "types.String",
    bytes: "types.Bytes",
    type(None): "types.Null",
    Duration: "types.Duration",
    Timestamp: "types.Timestamp",
    Optional: "*types.Optional",
    TypeValue: "*types.Type",
    CelQuantity: "cel.Quantity",
    Semver: "cel.Semver",
    Url: "cel.URL",
    Ip: "cel.IP",
    Cidr: "cel.CIDR",
    NamedFormat: "cel.Format",
}


def go_type(value: Any) -> str:
    """Return the name of the value's type in the server's own language, Go; some messages show it."""
    if type(value) is CelQuantity and value.computed:
        return "*cel.Quantity"
    return "*types.baseMap" if is_map(value) else _GO_TYPES.get(type(value), "types.Unknown")


def shown(value: Any) -> str:
    """Format a key or an index as messages do."""
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) in {int, Uint, str}:
        return str(value)
    if type(value) is float:
        return format_double(value)
    if type(value) is TypeValue:
        return value.name
    return type_name(value)
