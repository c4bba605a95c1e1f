"""Lists and maps at run time: how their elements are stored, counted and found.

In: containers and keys. Out: their elements. Python's own list and dict are containers as they are; a concatenation
of lists and a map with keys of several types have a class each. Numbers of different types are the same key if no
precision is lost.

Source: cel-go's list and map types.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from dra_driver.base.quantity import Quantity
from dra_driver.base.versions import Semver

# Run-time values, and the two ways in which an evaluation can fail.

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


# Cancellation of work on selectors when the time of a waiting caller is up.

Check = Callable[[], None]

# While a caller waits, a selector whose worst case costs more than this is evaluated step by step, because the quick
# evaluator can't be stopped. A cost of this size takes a few milliseconds.
QUICK_COST = 20_000
STEPS = 256  # evaluation steps between two checks: less than a millisecond


class _ThreadCheck(threading.local):
    check: Check | None = None


_thread_check = _ThreadCheck()


class EvaluationCancelledError(Exception):
    """The time is up. Code between the caller that set the check and the work must not take this for a verdict."""


@contextmanager
def cancellable(check: Check) -> Iterator[None]:
    """Call `check` from all work on selectors in this thread; it stops the work by raising EvaluationCancelledError."""
    before, _thread_check.check = _thread_check.check, check
    try:
        yield
    finally:
        _thread_check.check = before


def cancellation_check() -> Check | None:
    """Return the check of this thread, or None if no caller waits."""
    return _thread_check.check


def check_cancelled() -> None:
    """Call the check of this thread, if there is one. Raises: EvaluationCancelledError."""
    check = _thread_check.check
    if check is not None:
        check()


# Work that the server's cost model does not charge for, bounded for each evaluation.

MAX_WORK = 2_000_000  # about a second
COPIED_AT_ONCE = 8  # this many elements are copied in the time in which one is compared or printed


class _ThreadWork(threading.local):
    elements = 0


_work = _ThreadWork()


def begin_work() -> None:
    """Begin another evaluation, or compilation, in this thread."""
    _work.elements = 0


def count_work(elements: int) -> None:
    """Count elements before they are touched. Raises: CelAbort if they are too many for one evaluation."""
    _work.elements += elements + 1
    check_cancelled()
    if _work.elements > MAX_WORK:
        raise CelAbort(COST_EXCEEDED)


_UNHASHABLE = {Semver: "cel.Semver", bytes: "types.Bytes", NamedFormat: "cel.Format"}


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
    count_work(value.size // COPIED_AT_ONCE)
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


def element_at(value: list[Any] | Concat, index: int) -> Any:
    """Return the element at an index within the list, without unfolding it. Raises: CelAbort."""
    parts = 0
    while isinstance(value, Concat):
        size, parts = list_size(value.left), parts + 1
        value, index = (value.left, index) if index < size else (value.right, index - size)
    if parts:
        count_work(parts // COPIED_AT_ONCE)
    return value[index]


_KEY_TYPES = frozenset({str, int})


class IdentityKey:
    """A key that equals only itself (a list, a map, a quantity, a URL), or nothing at all (NaN)."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return id(self.key)

    def __eq__(self, other: object) -> bool:
        return type(other) is IdentityKey and other.key is self.key and type(self.key) is not float


def raw_key(key: Any) -> Any:
    """Return the key under which a CelMap stores a value: ints and strings unchanged, other types kept apart."""
    kind = type(key)
    if kind in _KEY_TYPES:
        return key
    if kind in _EQUAL_BY_IDENTITY or isinstance(key, dict) or (kind is float and key != key):  # noqa: PLR0124
        return IdentityKey(key)
    return kind, key


def plain_key(raw: Any) -> Any:
    """Return the CEL key that is stored under `raw`."""
    if type(raw) is IdentityKey:
        return raw.key
    return raw[1] if type(raw) is tuple else raw


_EQUAL_BY_IDENTITY = frozenset({list, Concat, CelMap, CelQuantity, Url})


def map_size(value: Any) -> int:
    """Count the entries of a map."""
    return len(value.items) if type(value) is CelMap else len(value)


def map_keys(value: Any) -> list[Any]:
    """List the keys of a map."""
    return [plain_key(raw) for raw in value.items] if type(value) is CelMap else list(value)


def map_items(value: Any) -> list[tuple[Any, Any]]:
    """List the entries of a map."""
    if type(value) is CelMap:
        return [(plain_key(raw), item) for raw, item in value.items.items()]
    return list(value.items())


def is_map(value: Any) -> bool:
    """Return whether the value is a map."""
    return type(value) is CelMap or isinstance(value, dict)


def find(holder: Any, key: Any) -> tuple[bool, Any]:
    """Look up a key; return whether it is present, and its value. Numbers match across types if no precision is lost.

    Raises:
        CelAbort: The server itself panics on such a key.
    """
    if type(holder) is not CelMap:
        if type(key) is str and key in holder:
            return True, holder[key]
        return False, None
    items = holder.items
    if not items:
        return False, None
    refuse_unhashable(key)
    for raw in _equal_raw_keys(key):
        if raw in items:
            return True, items[raw]
    return False, None


def refuse_unhashable(key: Any) -> None:
    """Raise where the server panics because a value can't be hashed.

    Raises:
        CelAbort: The value can't be hashed.
    """
    name = _UNHASHABLE.get(type(key))
    if name is not None:
        raise CelAbort(f"internal error: runtime error: hash of unhashable type {name}")


def whole_numbers(value: float) -> list[int | Uint]:
    """Return the integers that the server finds equal to a double; the ends of int64 are not among them."""
    if not math.isfinite(value) or value != int(value):
        return []
    whole = int(value)
    found: list[int | Uint] = [whole] if abs(whole) < 2**63 else []
    return found + ([Uint(whole)] if 0 <= whole < 2**64 else [])


def _equal_raw_keys(key: Any) -> list[Any]:
    kind = type(key)
    if kind is float:
        return [raw_key(key), *map(raw_key, whole_numbers(key))]
    if kind is int:
        return [key, (Uint, Uint(key))] if key >= 0 else [key]
    if kind is Uint:
        return [(Uint, key), int(key)]
    return [raw_key(key)]


# Doubles as text.

_EXPONENT_FROM = 6


def format_double(number: float) -> str:
    """Print a double as Go's %g does: shortest digits, with an exponent below -4 and from 7 digits on."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)  # noqa: S101
    text = "".join(map(str, digits)).lstrip("0").rstrip("0") or "0"
    if number == 0:
        return "-0" if math.copysign(1.0, number) < 0 else "0"
    point = Decimal(repr(abs(number))).adjusted()
    lead = "-" if sign else ""
    if point < -4 or point >= _EXPONENT_FROM:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{lead}{text[0]}{fraction}e{'-' if point < 0 else '+'}{abs(point):02d}"
    if point < 0:
        return f"{lead}0.{'0' * (-point - 1)}{text}"
    if len(text) <= point + 1:
        return lead + text.ljust(point + 1, "0")
    return f"{lead}{text[: point + 1]}.{text[point + 1 :]}"
