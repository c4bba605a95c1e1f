"""Waiting: calls sleep here until something was unprepared, their time is up, or the agent ends."""

from __future__ import annotations

import threading


class Waiting:
    """One per agent. `is_over` once the agent ends: nobody sleeps any more."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.is_over = False

    def pause(self, seconds: float) -> None:
        """Sleep, at most for `seconds`."""
        with self._condition:
            if not self.is_over:
                self._condition.wait(seconds)

    def wake(self) -> None:
        """Wake every call: a device may be free."""
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        """Wake every call for good."""
        with self._condition:
            self.is_over = True
            self._condition.notify_all()
