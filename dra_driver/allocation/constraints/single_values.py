"""Constraints on attributes that have one value.

In: devices with their values. Out: whether a device may join. As in Kubernetes, after a removal the last value stays
known, and until 1.36 `distinctAttribute` remembers one value per request name, so only the last device of a request
counts.

Source: Kubernetes structured allocator, matchAttribute and distinctAttribute.
"""

from __future__ import annotations

from collections.abc import Hashable

from dra_driver.allocation.constraints.constraint import ComparedValue, Constraint


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
    """All devices must have the attribute, each with a value of its own."""

    __slots__ = ("count", "values")

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        super().__init__(attribute, requests)
        self.count = 0
        self.values: dict[str, ComparedValue] = {}

    def add(self, request: str, value: ComparedValue | None) -> bool:
        """Accept a device whose value differs from all remembered values."""
        if value is None:
            return False
        if self.count and (value in self.values.values() or (value[0] == "?" and self.values)):
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
