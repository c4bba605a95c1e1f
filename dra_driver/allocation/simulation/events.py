"""Events of a simulation, and their outcomes. Plain values.

In: claims, pods and slices as wire dicts. Out: `Job`s that request devices, `TimelineEvent`s, and an `EventOutcome` for
each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.allocation.pools.held import claim_name
from dra_driver.allocation.pools.usage import Usage
from dra_driver.model.wire import ClaimWire, SliceWire, Wire

KINDS = ("arrive", "leave", "drain", "undrain", "lose", "restore", "replace")


@dataclass(frozen=True, slots=True)
class Job:
    """Something that requests devices: a pod with its claims, or claims alone.

    Several jobs may have the same claim (by namespace and name): it is allocated once, for all of them.
    """

    name: str
    claims: tuple[ClaimWire, ...]
    pod: Wire | None = None
    blocked: str = ""  # why it can't be scheduled even if all devices are free


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event. `kind` is one of `KINDS`; `target` names a job, a node, or a node/device."""

    kind: str
    target: str
    label: str = ""
    jobs: tuple[Job, ...] = ()
    slices: tuple[SliceWire, ...] = ()

    @property
    def sentence(self) -> str:
        """The event as a sentence."""
        return self.label or f"{self.kind} {self.target}"


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """One job that was placed."""

    job: str
    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One job that could not be placed, and why."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """The effect of one event. `evicted` are the jobs that lost their node or a device."""

    event: TimelineEvent
    placed: tuple[PlacedJob, ...]
    waiting: tuple[WaitingJob, ...]
    evicted: tuple[str, ...]
    usage: Usage


def jobs_of_claims(claims: Sequence[ClaimWire]) -> tuple[Job, ...]:
    """Make a job of each claim."""
    return tuple(Job(claim_name(claim), (claim,)) for claim in claims)
