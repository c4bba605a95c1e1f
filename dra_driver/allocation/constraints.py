"""Constraints on attributes that have one value.

In: devices with their values. Out: whether a device may join. As in Kubernetes, after a removal the last value stays
known, and until 1.36 `distinctAttribute` remembers one value per request name, so only the last device of a request
counts.

Source: Kubernetes structured allocator, matchAttribute and distinctAttribute.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from dra_driver.base.wire import Wire

# What all constraints share: the requests that they cover, and the value of an attribute that they compare.

ComparedValue = tuple[str, Any]  # kind, value
_KINDS = ("string", "int", "bool", "version")
_SOME: ComparedValue = ("some", None)
_SET_KINDS = ("int", "bool", "string", "version")


def look_up(device: Wire, driver: str, name: str, *, lists: bool = False) -> ComparedValue | None:
    """Return the kind and value of the attribute with a fully qualified name, or ("?", None) if it can't be compared.

    With `lists` the value is the set of the attribute's values, whether it holds one value or many.

    Source: structured allocator, lookupAttribute: the exact key first, then the key without the driver's own domain.
    """
    attributes: Mapping[str, Wire] = device.get("attributes") or {}
    held = attributes.get(name)
    if held is None:
        domain, slash, short = name.partition("/")
        if not slash or domain != driver:
            return None
        held = attributes.get(short)
        if held is None:
            return None
    return compared_value(held, lists=lists)


def compared_value(held: Wire, *, lists: bool) -> ComparedValue:
    """Return the kind and value of an attribute's value as `look_up` does."""
    if lists:
        return _as_set(held)
    for kind in _KINDS:
        value = held.get(kind)
        if value is not None:
            return kind, value
    return "?", None


def _as_set(held: Wire) -> ComparedValue:
    for kind in _SET_KINDS:
        if held.get(f"{kind}s"):
            return kind, frozenset(held[f"{kind}s"])
    for kind in _SET_KINDS:
        if held.get(kind) is not None:
            return kind, frozenset([held[kind]])
    return "?", None


class Constraint:
    """What all constraints share: which requests they cover, and which attribute they compare."""

    __slots__ = ("attribute", "requests")

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        self.attribute = attribute
        self.requests = requests

    def covers(self, request: str, full_name: str) -> bool:
        """Return whether the constraint applies to devices of a request, or of one of its alternatives."""
        return not self.requests or request in self.requests or full_name in self.requests

    def compared(self, value: ComparedValue | None) -> ComparedValue | None:
        """Return what the constraint sees of a value; it treats devices of which it sees the same alike."""
        return value

    def add(self, request: str, value: ComparedValue | None) -> bool:
        """Let a device join if its value is acceptable; return whether it did."""
        raise NotImplementedError

    def remove(self, request: str) -> None:
        """Forget a device that joined."""
        raise NotImplementedError

    def state(self) -> Hashable:
        """Return everything that decides about further devices."""
        raise NotImplementedError


class MatchAttribute(Constraint):
    """All devices must have the attribute, with the same kind and value."""

    __slots__ = ("count", "value")

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self.count = 0
        self.value: ComparedValue | None = None

    def add(self, request: str, value: ComparedValue | None) -> bool:  # noqa: ARG002
        """Accept the first device that has the attribute, then devices with the same value."""
        if value is None:
            return False
        if self.count == 0:
            self.value = value
            self.count = 1
            return True
        if value[0] == "?" or value != self.value:
            return False
        self.count += 1
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002
        """Count one device fewer; the value stays known."""
        self.count -= 1

    def state(self) -> Hashable:
        """Return the common value and the number of devices that have it (after leaks the number matters)."""
        return (self.count, self.value) if self.count else 0


class DistinctAttribute(Constraint):
    """All devices must have the attribute, each with a value of its own; without `compares`, any value (1.34)."""

    __slots__ = ("compares", "count", "values")

    def __init__(self, attribute: str, requests: frozenset[str], *, compares: bool) -> None:
        super().__init__(attribute, requests)
        self.compares = compares
        self.count = 0
        self.values: dict[str, ComparedValue] = {}

    def compared(self, value: ComparedValue | None) -> ComparedValue | None:
        """Return the value, or a place that stands for all values."""
        return value if value is None or value[0] == "?" or self.compares else _SOME

    def add(self, request: str, value: ComparedValue | None) -> bool:
        """Accept a device whose value differs from all remembered values."""
        value = self.compared(value)
        if value is None:
            return False
        is_taken = self.compares and value in self.values.values()
        if self.count and (is_taken or (value[0] == "?" and self.values)):
            return False
        self.values[request] = value
        self.count += 1
        return True

    def remove(self, request: str) -> None:
        """Forget the value of the request, whichever of its devices that value came from."""
        self.values.pop(request, None)
        self.count -= 1

    def state(self) -> Hashable:
        """Return the remembered values."""
        return (self.count, tuple(sorted(self.values.items()))) if self.count or self.values else 0


class PairwiseDistinctAttribute(Constraint):
    """All devices must have the attribute, each with a value of its own, whatever their requests are (since 1.37)."""

    __slots__ = ("values",)

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self.values: list[ComparedValue] = []

    def add(self, request: str, value: ComparedValue | None) -> bool:  # noqa: ARG002
        """Accept a device whose value no other device has."""
        if value is None or value in self.values or (value[0] == "?" and self.values):
            return False
        self.values.append(value)
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002
        """Forget the latest value."""
        self.values.pop()

    def state(self) -> Hashable:
        """Return the values of all devices."""
        return tuple(sorted(self.values))


# Constraints on attributes that may have several values (gate DRAListTypeAttributes).


class MatchLists(Constraint):
    """All devices must share at least one value; a single value counts as a list of one (DRAListTypeAttributes).

    In 1.36 (`keeps`) the common values stay narrowed by a device that was taken back, until no device is left.
    """

    __slots__ = ("common", "count", "keeps")

    def __init__(self, attribute: str, requests: frozenset[str], *, keeps: bool) -> None:
        super().__init__(attribute, requests)
        self.common: list[ComparedValue] = []
        self.count = 0
        self.keeps = keeps

    def add(self, request: str, value: ComparedValue | None) -> bool:  # noqa: ARG002
        """Accept a device that shares a value with all devices before it."""
        if value is None or value[0] == "?":
            return False
        if self.count == 0:
            self.common = [value]
        else:
            kind, values = self.common[-1]
            if kind != value[0] or not values & value[1]:
                return False
            self.common.append((kind, values & value[1]))
        self.count += 1
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002
        """Forget a device and, since 1.37, how it narrowed the common values."""
        self.count -= 1
        if not self.keeps:
            self.common.pop()

    def state(self) -> Hashable:
        """Return the common values."""
        return (self.count, self.common[-1]) if self.count else 0


class DistinctLists(Constraint):
    """No two devices may have a value in common (DRAListTypeAttributes).

    In 1.36 (`forgets`) one value is remembered per request, as in `DistinctAttribute`.
    """

    __slots__ = ("count", "forgets", "values")

    def __init__(self, attribute: str, requests: frozenset[str], *, forgets: bool) -> None:
        super().__init__(attribute, requests)
        self.values: list[tuple[str, ComparedValue]] = []
        self.count = 0
        self.forgets = forgets

    def add(self, request: str, value: ComparedValue | None) -> bool:
        """Accept a device that shares no value with any device before it."""
        if value is None or (value[0] == "?" and (self.count or not self.forgets)):
            return False
        if any(kind == value[0] and held & value[1] for _, (kind, held) in self.values if held) and (
            self.count or not self.forgets
        ):
            return False
        if self.forgets:
            self.values = [one for one in self.values if one[0] != request]
        self.values.append((request, value))
        self.count += 1
        return True

    def remove(self, request: str) -> None:
        """Forget the latest device or, in 1.36, whatever is remembered for its request."""
        self.count -= 1
        if self.forgets:
            self.values = [value for value in self.values if value[0] != request]
        else:
            self.values.pop()

    def state(self) -> Hashable:
        """Return the remembered values."""
        return (self.count, tuple(self.values)) if self.count or self.values else 0


# The construction of a claim's constraints.


def make_constraint(
    wire: Wire, *, knows_distinct: bool, compares: bool = True, forgets: bool = True, lists: bool = False
) -> Constraint | None:
    """Make a constraint without any devices; return None for a kind that the allocator does not know."""
    requests = frozenset(wire.get("requests") or ())
    if wire.get("matchAttribute") is not None:
        if lists:
            return MatchLists(wire["matchAttribute"], requests, keeps=forgets)
        return MatchAttribute(wire["matchAttribute"], requests)
    if knows_distinct and wire.get("distinctAttribute") is not None:
        if lists:
            return DistinctLists(wire["distinctAttribute"], requests, forgets=forgets)
        if not forgets:
            return PairwiseDistinctAttribute(wire["distinctAttribute"], requests)
        return DistinctAttribute(wire["distinctAttribute"], requests, compares=compares)
    return None
