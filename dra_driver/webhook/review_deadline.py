"""The deadline of a review: how long it may be worked on, and whether the caller still waits for it.

In: the time of its arrival, and whether its caller has gone. Out: a check for `selectors.values.cancellation`, which
stops the work when the time is over or the caller is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dra_driver.selectors.values.cancellation import EvaluationCancelledError

SECONDS = 0.8  # for all selectors of a review together; the API server waits 1 s


class CallerGoneError(EvaluationCancelledError):
    """The caller does not wait for the answer any more."""


class ReviewDeadline:
    """The time that one review may still take. `is_gone` returns whether its caller has closed the connection."""

    def __init__(
        self,
        seconds: float = SECONDS,
        *,
        is_gone: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._is_gone = clock, is_gone
        self._until = clock() + seconds

    @property
    def left_s(self) -> float:
        """The number of seconds left."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Return if the work should go on. Raises: EvaluationCancelledError, CallerGoneError."""
        if self._clock() >= self._until:
            raise EvaluationCancelledError
        self.check_caller()

    def check_caller(self) -> None:
        """Return if the caller is still there. Raises: CallerGoneError."""
        if self._is_gone():
            raise CallerGoneError
