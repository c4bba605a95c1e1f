"""Status: the state of publishing, for readiness, metrics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.hardware.facts import Problem


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The state of publishing. `slices`, `devices` and `generation` are what the API server holds of our pool.

    `is_published` is whether that is what was last requested. `is_counting` is false once the server has been seen to
    drop shared counters; overlapping devices are then withheld. `is_sharing` is false once it has been seen to drop
    that a device may be allocated many times; replicas or whole devices are then offered. `dropped` lists the fields
    that the server did not keep. `writes` counts accepted writes by verb since the process started.
    """

    pool: str
    is_published: bool = False
    generation: int = 0
    slices: int = 0
    devices: int = 0
    is_counting: bool = True
    is_sharing: bool = True
    server: str = ""
    last_error: str = ""
    dropped: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    writes: Mapping[str, int] = field(default_factory=dict)
