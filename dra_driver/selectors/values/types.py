"""The types of the dialect: what they are, and how messages print them.

In: type expressions of the overload table. Out: `Type` values. Nothing here knows about expressions or values.

Source: cel-go's types with Kubernetes' type names.
"""

from __future__ import annotations

from functools import lru_cache

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
