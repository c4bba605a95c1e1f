"""What the agents have counted over a period, as values that do not depend on where they were read.

Seconds are device-seconds: two devices for an hour are 7,200. A share counts as a fraction of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

GpuParts = Mapping[tuple[str, str], float]
"""The fraction of a GPU that a device takes (0 to 1), by model and profile."""


@dataclass(frozen=True, slots=True)
class ClaimUsage:
    """The use of a claim's devices of one class, model and profile in one pool."""

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
    memory_max_bytes: float | None = None  # the largest amount on one device
    sm_p95: float | None = None  # the 95th percentile of the fraction of multiprocessors at work (0 to 1)

    @property
    def node(self) -> str:
        """Return the node of the pool."""
        return self.pool.partition("/")[0]

    @property
    def driver(self) -> str:
        """Return the driver of the pool."""
        return self.pool.partition("/")[2]


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """The use of devices of one class, model and profile by all claims of a namespace, the shortest included."""

    namespace: str
    device_class: str
    model: str
    profile: str
    allocated_s: float
    busy_s: float = 0.0
    measured_s: float = 0.0

    def plus(self, other: NamespaceUsage) -> NamespaceUsage:
        """Return the sum of both, which must be about the same namespace, class, model and profile."""
        return replace(
            self,
            allocated_s=self.allocated_s + other.allocated_s,
            busy_s=self.busy_s + other.busy_s,
            measured_s=self.measured_s + other.measured_s,
        )


@dataclass(frozen=True, slots=True)
class UnclaimedTime:
    """GPU-seconds of a pool in which no claim had the GPU."""

    pool: str
    model: str
    seconds: float

    @property
    def node(self) -> str:
        """Return the node of the pool."""
        return self.pool.partition("/")[0]


class PageSums(NamedTuple):
    """What an agent has counted, from its page."""

    claims: tuple[ClaimUsage, ...]
    totals: tuple[NamespaceUsage, ...]
    unclaimed: tuple[UnclaimedTime, ...]
    parts: GpuParts


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """What was counted from `begin` to `end`; `begin` is None if it is the time when each agent began to count."""

    source: str
    begin: datetime | None
    end: datetime
    claims: tuple[ClaimUsage, ...] = ()
    totals: tuple[NamespaceUsage, ...] = ()
    unclaimed: tuple[UnclaimedTime, ...] = ()
    parts: GpuParts = field(default_factory=dict)
    notes: tuple[str, ...] = ()
