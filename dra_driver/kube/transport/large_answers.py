"""Large answers: read and parsed one at a time, so that many of them together don't fill the memory of the process.

In: that an answer has become large. Out: a turn, which its request keeps until the answer is parsed.
"""

from __future__ import annotations

import threading
import time

LARGE_BYTES = 256 * 1024
_one_at_a_time = threading.Lock()


class LargeTurn:
    """The turn of one request; most never take it. `until` is a time of `time.monotonic`. For one thread."""

    __slots__ = ("_is_held", "until")

    def __init__(self, until: float) -> None:
        self.until, self._is_held = until, False

    def take(self) -> None:
        """Wait for the turn, unless it is held. Raises: TimeoutError."""
        if self._is_held:
            return
        if not _one_at_a_time.acquire(timeout=max(0.0, self.until - time.monotonic())):
            raise TimeoutError("another large answer is being read")
        self._is_held = True

    def end(self) -> None:
        """End the turn, if it is held, so that the next request may take it."""
        if self._is_held:
            self._is_held = False
            _one_at_a_time.release()
