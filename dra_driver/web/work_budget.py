"""The work that a console does beside serving pages, and the memory that it may take: in all not more than there is.

In: the memory limit of the container. Out: the places for questions and commands, and how many bytes each may use. With
the chart's limit of 1 GiB, all of them together can't take more than 896 MiB; the rest is for the console and boards.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.web.places import SharedPlaces

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # cgroup v2, and v1
_CHART = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkBudget:
    """The places of one console, and the bytes of memory that each question or command may add.

    `heavy` is for questions that simulate the scheduler, `quick` for all other questions.
    """

    heavy_bytes: int = 1 << 30
    quick_bytes: int = 1 << 30
    command_bytes: int = 2 << 30
    heavy: SharedPlaces = field(default_factory=lambda: SharedPlaces(2, 1, 16))
    quick: SharedPlaces = field(default_factory=lambda: SharedPlaces(4, 2, 64))
    commands: SharedPlaces = field(default_factory=lambda: SharedPlaces(2, 1, 8))

    @classmethod
    def within(cls, limit: int) -> WorkBudget:
        """Return a budget that fits into a container with a memory limit of so many bytes."""
        part = limit / _CHART
        return cls(int(160 * _MIB * part), int(48 * _MIB * part), int(192 * _MIB * part))


def container_limit() -> int:
    """Return the memory limit of this container; that of the chart if there is none."""
    for path in _LIMITS:
        with suppress(OSError, ValueError):
            limit = int(Path(path).read_text())
            if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                return limit
    return _CHART
