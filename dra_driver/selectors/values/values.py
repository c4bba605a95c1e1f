"""Run-time values, and the two ways in which an evaluation can fail.

CEL's bool, int, double, string, bytes, null and list are Python's bool, int, float, str, bytes, None and list; maps
that have only string keys may be plain dicts. All other values are defined here. `type(value)` determines the CEL type,
so no class may subclass one of these by accident.

The rule: cel-go's common/types and Kubernetes' CEL libraries (type names as messages print them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from dra_driver.model.quantity import Quantity
from dra_driver.model.semver import Semver
from dra_driver.selectors.values.types import Type


class CelError(Exception):
    """An evaluation error, which logical operators may absorb."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class CelAbort(Exception):
    """An evaluation that was stopped because it exceeded the budget or the server itself panics. Nothing absorbs it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Uint(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time in nanoseconds (int64)."""

    ns: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment in nanoseconds since the epoch. It is printed with the offset (in minutes) with which it was written."""

    ns: int
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """An optional value; `NONE` is the optional without a value."""

    value: Any
    present: bool = True


NONE = Optional(None, present=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value. Only the name counts: list(int) and list(string) are the same type at run time."""

    name: str


@dataclass(slots=True, eq=False)
class CelQuantity:
    """A Kubernetes quantity. `computed` marks results of add and sub, which the server's `==` refuses on the right.

    `kin` lists the quantities that share one big number (up to 1.36): an operation that changes one changes them all.
    No other operation changes a quantity.
    """

    number: Quantity
    computed: bool = False
    kin: list[CelQuantity] | None = None


@dataclass(frozen=True, slots=True)
class Ip:
    """An IP address."""

    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with a prefix length; host bits are kept."""

    address: IPv4Address | IPv6Address
    prefix: int


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL, stored as the parts that the accessors return."""

    text: str
    scheme: str
    host: str
    hostname: str
    port: str
    escaped_path: str
    query: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """One of the named string formats."""

    name: str


@dataclass(frozen=True, slots=True)
class MessageValue:
    """A protobuf message that has no CEL value of its own (google.protobuf.Empty and Any)."""

    name: str
    fields: tuple[tuple[str, Any], ...] = ()


class CelMap:
    """A map with keys of any allowed type. `items` maps raw keys (see `raw_key`) to values."""

    __slots__ = ("items",)

    def __init__(self, items: dict[Any, Any]) -> None:
        self.items = items


class Concat:
    """The concatenation of two lists, unfolded only when all elements are needed."""

    __slots__ = ("left", "right", "size")

    def __init__(self, left: list[Any] | Concat, right: list[Any] | Concat) -> None:
        self.left = left
        self.right = right
        self.size = list_size(left) + list_size(right)


MAX_ELEMENTS = 2_000_000  # the budget does not allow walking a longer list


def list_size(value: list[Any] | Concat) -> int:
    """Count the elements of a list without unfolding it."""
    return value.size if type(value) is Concat else len(value)  # type: ignore[arg-type]


def unfold(value: list[Any] | Concat) -> list[Any]:
    """Return the elements as one list.

    Raises:
        CelAbort: The list is longer than the budget could ever pay for.
    """
    if type(value) is list:
        return value
    assert isinstance(value, Concat)  # noqa: S101
    if value.size > MAX_ELEMENTS:
        raise CelAbort(COST_EXCEEDED)
    parts: list[list[Any]] = []
    pending: list[list[Any] | Concat] = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, Concat):
            pending.append(part.right)
            pending.append(part.left)
        else:
            parts.append(part)
    return [element for part in parts for element in part]


COST_EXCEEDED = "operation cancelled: actual cost limit exceeded"

_KEY_TYPES = frozenset({str, int})


class SameKey:
    """A key that equals only itself (a list, a map), or nothing at all (NaN)."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return id(self.key)

    def __eq__(self, other: object) -> bool:
        return type(other) is SameKey and other.key is self.key and type(self.key) is not float


def raw_key(key: Any) -> Any:
    """Return the key under which a CelMap stores a value: ints and strings unchanged, other types kept apart."""
    kind = type(key)
    if kind in _KEY_TYPES:
        return key
    if kind in _FOUND_BY_THEMSELVES or isinstance(key, dict) or (kind is float and key != key):  # noqa: PLR0124
        return SameKey(key)
    return kind, key


def plain_key(raw: Any) -> Any:
    """Return the CEL key that is stored under `raw`."""
    if type(raw) is SameKey:
        return raw.key
    return raw[1] if type(raw) is tuple else raw


_FOUND_BY_THEMSELVES = frozenset({list, Concat, CelMap})

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
