"""Status: the state of publishing, for readiness, metrics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.hardware.facts import Problem
from dra_driver.inventory.offering import ALL_KEPT, KeptFields


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The state of publishing. `slices`, `devices` and `generation` are what the API server holds of our pool.

    `is_published`: whether this is what was offered last. `keeps`: which fields the server has not been seen to drop;
    if it drops one, a substitute is offered. `dropped`: the fields that it did not keep. `writes`: how many writes it
    has accepted since the process started, by verb.
    """

    pool: str
    is_published: bool = False
    generation: int = 0
    slices: int = 0
    devices: int = 0
    keeps: KeptFields = ALL_KEPT
    server: str = ""
    last_error: str = ""
    dropped: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    writes: Mapping[str, int] = field(default_factory=dict)

    def figures(self) -> Mapping[str, str | int]:
        """Return the figures of the pool for a log line."""
        return {"pool": self.pool, "generation": self.generation, "slices": self.slices, "devices": self.devices}
