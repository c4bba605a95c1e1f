"""Pace: when the slices may be written, so that neither a refusing server nor another client gets an endless stream.

In: what the pool is to hold (the wish), and how each attempt ended. Out: the seconds until a write may be made. A new
wish may be written at once. The same wish is sent again after a failure, later each time; and after another client has
changed slices that held it, three times and then about once a minute. Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from dra_driver.controller.content import PoolContent
from dra_driver.kube.backoff import Backoff
from dra_driver.model.errors import ApiError, Retry

SPREAD_SECONDS = 60.0  # over how many seconds the agents of a cluster spread what they ask of a restarted API server
REFUSED_MAX_SECONDS = 600.0
BURST = 3
REPAIR_SECONDS = 64.0  # with the burst, an hour then has at most 60 repairs
_REFUSED_STEADY = 0.8  # the least part of the longest delay: an hour then has at most 12 attempts that are refused
_TRANSIENT = (404, 408, 409, 410, 429)  # the statuses below 500 that say nothing against the object that was sent


class RepairTokens:
    """Holds at most `burst` tokens, and gets another one every `every_s` seconds."""

    def __init__(self, burst: int, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._every_s, self._clock = burst, every_s, clock
        self._full_at = float("-inf")  # when the bucket will be full

    def take(self) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is."""
        now = self._clock()
        missing_s = max(0.0, self._full_at - now)
        if (wait_s := missing_s - (self._burst - 1) * self._every_s) > 0:
            return wait_s
        self._full_at = now + missing_s + self._every_s
        return 0.0


class WritePace:
    """Decides when the next attempt to write one pool may be made. `clock` returns seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
        spread_s: float = SPREAD_SECONDS,
    ) -> None:
        def steady(low: float, step: float) -> float:
            return uniform(_REFUSED_STEADY * step if step >= REFUSED_MAX_SECONDS else low, step)

        self._clock = clock
        self._transient = Backoff(base_s=0.1, max_s=spread_s, factor=4.0, uniform=uniform)
        self._refused = Backoff(base_s=2.0, max_s=REFUSED_MAX_SECONDS, factor=8.0, uniform=steady)
        self._repairs = RepairTokens(BURST, REPAIR_SECONDS, clock=clock)
        self._wish: tuple[PoolContent | None] | None = None  # None before the first attempt
        self._is_done = False
        self._retry_at = float("-inf")

    @property
    def attempts(self) -> int:
        """The number of failed attempts since the last success."""
        return self._transient.attempts + self._refused.attempts

    @property
    def retry_s(self) -> float:
        """The seconds until a failed attempt may be repeated; 0 if none waits."""
        return max(0.0, self._retry_at - self._clock())

    def restart(self) -> None:
        """Forget the last wish, because this agent begins to publish again."""
        self._wish = None

    def admit(self, wish: PoolContent | None) -> float:
        """Return 0 if the slices may be written now so that they hold `wish`, otherwise the seconds to wait."""
        if self._wish != (wish,):
            self._wish, self._is_done, self._retry_at = (wish,), False, float("-inf")
            self._reset()
        if not self._is_done:
            return self.retry_s
        wait_s = self._repairs.take()
        self._is_done = wait_s > 0
        return wait_s

    def failed(self, error: ApiError) -> float | None:
        """Record that an attempt failed; return the delay before the next one, or None if only a change can help."""
        if error.retry is Retry.NEVER and not error.status:  # nothing was sent
            return None
        backoff = self._refused if is_refusal(error) else self._transient
        delay_s = backoff.next_s(least_s=error.retry_after_s)
        self._is_done, self._retry_at = False, self._clock() + delay_s
        return delay_s

    def succeeded(self, wish: PoolContent | None) -> None:
        """Record that the slices hold a wish."""
        self._wish, self._is_done = (wish,), True
        self._reset()

    def _reset(self) -> None:
        self._transient.reset()
        self._refused.reset()


def is_refusal(error: ApiError) -> bool:
    """Return whether the server, a webhook or a policy did not accept what was sent, or who sent it."""
    return 400 <= error.status < 500 and error.status not in _TRANSIENT
