"""Schedule: when the slices have to be examined next.

In: reports that something is wanted, that an attempt failed, that another client changed slices. Out: the seconds until
the next examination. Not thread-safe: the owner holds a lock. Changes by other clients are answered after a short quiet
time (the kubelet removes slices one by one, and one answer is enough), and more and more slowly if they continue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from dra_driver.kube.backoff import Backoff

SETTLE_SECONDS = 0.25  # quiet time after another client's change before we answer it
_MAX_SETTLE = 2.0  # the longest wait after the first of many changes
_MAX_RETRY = 10.0
_MAX_PATIENCE = 15.0  # the longest time that a node lacks its devices while the kubelet keeps restarting
_QUIET_SECONDS = 120.0  # after this time without changes by other clients the next one is answered quickly again


class Schedule:
    """Due times on a monotonic clock, in seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
        settle_s: float = SETTLE_SECONDS,
    ) -> None:
        self._clock, self._settle_s = clock, settle_s
        self._retries = Backoff(base_s=0.1, max_s=_MAX_RETRY, uniform=uniform)
        # Its delays are never close to 0, so that each answer waits longer than the one before.
        self._patience = Backoff(
            base_s=2 * settle_s, max_s=_MAX_PATIENCE, uniform=lambda _, step: uniform(step / 2, step)
        )
        self._answer_after_s = settle_s
        self._work_at: float | None = None
        self._answer_at: float | None = None
        self._answer_latest = 0.0
        self._disturbed_at = float("-inf")
        self._is_answer = False

    @property
    def attempts(self) -> int:
        """The number of failed attempts since the last success."""
        return self._retries.attempts

    def at_once(self) -> None:
        """Schedule an examination now."""
        self._work_at = self._clock()

    def disturbed(self) -> None:
        """Schedule an examination after a quiet time, because another client changed something."""
        now = self._clock()
        if now - self._disturbed_at > _QUIET_SECONDS:
            self._patience.reset()
            self._answer_after_s = self._settle_s
        self._disturbed_at = now
        if self._answer_at is None:
            self._answer_latest = now + max(_MAX_SETTLE, self._answer_after_s)
        self._answer_at = min(now + self._answer_after_s, self._answer_latest)

    def failed(self, *, least_s: float = 0.0, is_final: bool = False) -> float | None:
        """Schedule another attempt and return the growing delay; after a final failure only a change causes one."""
        delay = self._retries.next_s(least_s=least_s)
        if is_final:
            return None
        self._work_at = self._clock() + delay
        return delay

    def succeeded(self, *, writes: int) -> None:
        """Record that the slices are correct now, after this number of writes."""
        self._retries.reset()
        if self._is_answer and writes:
            self._answer_after_s = self._patience.next_s()

    def wait_s(self) -> float | None:
        """Return the seconds until an examination is due; 0 if it is due now, None if none is scheduled."""
        due = [at for at in (self._work_at, self._answer_at) if at is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def begin(self) -> None:
        """Record that the examination that is due begins now."""
        self._is_answer = self._answer_at is not None
        self._work_at = self._answer_at = None
