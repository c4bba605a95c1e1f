"""Clocks: the time since the boot, which nobody sets, and its relation to the time that people read and set.

Intervals and orders are computed in boot time, which is comparable only within one boot. What people read, and what is
on disk, is seconds since 1970, together with the difference of the two clocks at that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_SECONDS = 1.0  # a smaller difference is drift, which changes no time that was shown


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
