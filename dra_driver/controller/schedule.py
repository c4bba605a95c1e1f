"""Schedule: when the slices have to be examined next.

In: reports that something is wanted, that an attempt has to wait, that another client changed slices. Out: the seconds
until the next examination. Not thread-safe: the owner holds a lock. Changes by other clients are examined after a short
quiet time, because the kubelet removes slices one by one, and one examination is enough. Whether something may be
written then is decided by the pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SETTLE_SECONDS = 0.25  # quiet time after another client's change before we examine the slices
_MAX_SETTLE = 2.0  # the longest wait after the first of many changes


class Schedule:
    """Due times on a monotonic clock, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, settle_s: float = SETTLE_SECONDS) -> None:
        self._clock, self._settle_s = clock, settle_s
        self._work_at: float | None = None
        self._answer_at: float | None = None
        self._answer_latest = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether a change by another client has still to be examined."""
        return self._answer_at is not None

    def at_once(self) -> None:
        """Schedule an examination now."""
        self.within(0.0)

    def within(self, seconds: float) -> None:
        """Schedule an examination after these seconds, unless an earlier one is scheduled."""
        at = self._clock() + seconds
        self._work_at = at if self._work_at is None else min(at, self._work_at)

    def disturbed(self) -> None:
        """Schedule an examination after a quiet time, because another client may have changed something."""
        now = self._clock()
        if self._answer_at is None:
            self._answer_latest = now + _MAX_SETTLE
        self._answer_at = min(now + self._settle_s, self._answer_latest)

    def wait_s(self) -> float | None:
        """Return the seconds until an examination is due; 0 if it is due now, None if none is scheduled."""
        due = [at for at in (self._work_at, self._answer_at) if at is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def begin(self) -> None:
        """Record that an examination begins now."""
        self._work_at = self._answer_at = None

    def compared(self) -> None:
        """Record that the slices are compared with what is wanted now, after all changes that were reported so far."""
        self._answer_at = None
