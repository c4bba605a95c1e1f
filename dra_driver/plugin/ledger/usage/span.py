"""Span: the time for which a claim was prepared, and what it adds to which totals. Values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dra_driver.model.wire import Wire

TotalKey = tuple[str, ...]


class Span(NamedTuple):
    """The time for which a claim was prepared; `ended` is None while it still is.

    `charges` says what its devices count, in the form of the meter; "" if that was not recorded.
    """

    number: int
    key: str
    uid: str
    namespace: str
    name: str
    allocation: Wire
    began: float
    ended: float | None
    charges: str

    def seconds(self, now: float) -> float:
        """Return its length so far."""
        return max(0.0, (now if self.ended is None else self.ended) - self.began)


class UsageTotal(NamedTuple):
    """The total under one key, in seconds: allocated, busy, and for how much of it the use was measured."""

    allocated: float = 0.0
    busy: float = 0.0
    measured: float = 0.0

    def plus(self, other: UsageTotal) -> UsageTotal:
        """Return the sum of both."""
        return UsageTotal(self.allocated + other.allocated, self.busy + other.busy, self.measured + other.measured)


class SettledSpan(NamedTuple):
    """A span that has ended, with what it adds to the totals of claims and of the node, by key."""

    span: Span
    amounts: Mapping[TotalKey, float]
