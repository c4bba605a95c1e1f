"""Lists and maps at run time: how their elements are stored, counted and found.

In: containers and keys. Out: their elements. Python's own list and dict are containers as they are; a concatenation
of lists and a map with keys of several types have a class each. Numbers of different types are the same key if no
precision is lost.

Source: cel-go's list and map types.
"""

from __future__ import annotations

import math
from typing import Any

from dra_driver.model.semver import Semver
from dra_driver.selectors.values.values import COST_EXCEEDED, CelAbort, CelQuantity, NamedFormat, Uint, Url
from dra_driver.selectors.values.work import COPIED_AT_ONCE, count_work

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
