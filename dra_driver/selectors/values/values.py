"""Run-time values, and the two ways in which an evaluation can fail.

CEL's bool, int, double, string, bytes, null and list are Python's bool, int, float, str, bytes, None and list; maps
that have only string keys may be plain dicts. All other values are defined here, except our own lists and maps
(`containers.py`). `type(value)` determines the CEL type, so a value may never be an instance of a subclass by accident.

Source: cel-go's common/types and Kubernetes' CEL libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from dra_driver.model.quantity import Quantity

COST_EXCEEDED = "operation cancelled: actual cost limit exceeded"


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
    is_raw: bool = False  # the content is a device's version: it has no fields, but selecting one is not an error


NONE = Optional(None, present=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value. Only the name counts: list(int) and list(string) are the same type at run time."""

    name: str


@dataclass(slots=True, eq=False)
class CelQuantity:
    """A Kubernetes quantity. `computed` marks results of add and sub, which the server's `==` refuses on the right.

    `aliases` are the quantities that share one big number (up to 1.36): changing one of them changes all.
    No other operation changes a quantity.
    """

    number: Quantity
    computed: bool = False
    aliases: list[CelQuantity] | None = None


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
