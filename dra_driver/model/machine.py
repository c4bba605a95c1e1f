"""This machine: the boot, whose id shows whether earlier changes to the hardware can still be in effect.

The time since the boot is set by nobody, so intervals and orders are computed in it; it is comparable within one boot.
What people read, and what is on disk, is seconds since 1970, together with the difference of both clocks at that time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_BOOT_ID = "sys/kernel/random/boot_id"
STEP_SECONDS = 1.0  # a smaller difference is drift, which changes no time that was shown


def boot_id_file(proc_root: str | os.PathLike[str]) -> Path:
    """Return the path of the boot id's file below a mount of /proc."""
    return Path(proc_root, _BOOT_ID)


def read_boot_id(proc_root: str | os.PathLike[str]) -> str:
    """Return the id of this boot. Raises: OSError where it can't be read."""
    return boot_id_file(proc_root).read_text(encoding="ascii").strip()


def boot_time() -> float:
    """Return the seconds since this machine was booted, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class PeopleTime:
    """The time that people read, of moments in boot time; it is the same for a moment until the clock is set."""

    def __init__(self, clock: Callable[[], float] = boot_time, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._offset = wall() - clock()

    @property
    def offset(self) -> float:
        """Return how many seconds the time that people read is ahead of the boot time."""
        now = self._wall() - self._clock()
        if abs(now - self._offset) > STEP_SECONDS:
            self._offset = now
        return self._offset
