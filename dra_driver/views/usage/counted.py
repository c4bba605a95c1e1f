"""Counted: what the agents have counted over a time, as values that do not depend on where they were read.

Seconds are device-seconds: two devices for an hour are 7,200. A share counts as its part of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

GpuParts = Mapping[tuple[str, str], float]
"""Which part of a GPU a device takes (0 to 1), by model and profile."""


@dataclass(frozen=True, slots=True)
class CountedClaim:
    """One claim, as far as its devices are of one class, model and profile and in one pool."""

    namespace: str
    name: str
    uid: str
    device_class: str
    model: str
    profile: str
    pool: str
    allocated_s: float
    busy_s: float = 0.0
    measured_s: float = 0.0
    pods: tuple[str, ...] = ()
    devices: int = 1
    memory_max_bytes: float | None = None  # the most on one device
    sm_p95: float | None = None  # 95 % of the readings of multiprocessors at work are not above this (0 to 1)

    @property
    def node(self) -> str:
        """Return the node of the pool."""
        return self.pool.partition("/")[0]

    @property
    def driver(self) -> str:
        """Return the driver of the pool."""
        return self.pool.partition("/")[2]


@dataclass(frozen=True, slots=True)
class CountedTotal:
    """All claims of a namespace that had devices of one class, model and profile, however short they were."""

    namespace: str
    device_class: str
    model: str
    profile: str
    allocated_s: float
    busy_s: float = 0.0
    measured_s: float = 0.0

    def plus(self, other: CountedTotal) -> CountedTotal:
        """Return the sum of both, which are of one namespace, class, model and profile."""
        return replace(
            self,
            allocated_s=self.allocated_s + other.allocated_s,
            busy_s=self.busy_s + other.busy_s,
            measured_s=self.measured_s + other.measured_s,
        )


@dataclass(frozen=True, slots=True)
class CountedUnclaimed:
    """GPU-seconds of a pool that no claim had."""

    pool: str
    model: str
    seconds: float

    @property
    def node(self) -> str:
        """Return the node of the pool."""
        return self.pool.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted from `begin` to `end`; `begin` is None if it goes back as far as the agents count."""

    source: str
    begin: datetime | None
    end: datetime
    claims: tuple[CountedClaim, ...] = ()
    totals: tuple[CountedTotal, ...] = ()
    unclaimed: tuple[CountedUnclaimed, ...] = ()
    parts: GpuParts = field(default_factory=dict)
    notes: tuple[str, ...] = ()
