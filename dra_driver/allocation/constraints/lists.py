"""Constraints on attributes that may have several values (gate DRAListTypeAttributes).

In: devices with their sets of values. Out: whether a device may join.

Source: Kubernetes structured allocator, matchAttribute and distinctAttribute.
"""

from __future__ import annotations

from collections.abc import Hashable

from dra_driver.allocation.constraints.constraint import ComparedValue, Constraint


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
            self.values = [one for one in self.values if one[0] != request]
        else:
            self.values.pop()

    def state(self) -> Hashable:
        """Return the remembered values."""
        return (self.count, tuple(self.values)) if self.count or self.values else 0
