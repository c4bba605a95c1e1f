"""Patience of a review: until when it is worked on, and whether anybody still waits for it.

In: the moment when it came, and the caller's socket. Out: a check for `selectors.patience`, which stops the work when
the time is over or the caller is gone. Looking at the clock is cheap; the socket is looked at now and then.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from dra_driver.selectors.values.patience import OutOfPatienceError

SECONDS = 0.8  # for all selectors of a review together: the API server waits 1 s
_LOOK_SECONDS = 0.02


class CallerGoneError(OutOfPatienceError):
    """Nobody waits for the answer any more."""


class Patience:
    """What one review may still take. `is_gone` says whether its caller has closed the connection."""

    def __init__(
        self,
        seconds: float = SECONDS,
        *,
        is_gone: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._is_gone = clock, is_gone
        self._until = clock() + seconds
        self._look_at = clock() + _LOOK_SECONDS

    @property
    def left_s(self) -> float:
        """How many seconds are left."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Return while it is worth going on. Raises: OutOfPatienceError, CallerGoneError."""
        if self._clock() >= self._until:
            raise OutOfPatienceError
        self.look()

    def look(self) -> None:
        """Look whether the caller is there, if that has not been done for a while. Raises: CallerGoneError."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            if self._is_gone():
                raise CallerGoneError


def has_left(sock: socket.socket) -> bool:
    """Whether the other side has closed its half of a connection, whatever it sent before."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
