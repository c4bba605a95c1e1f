"""Waiting: calls sleep here until a device may be free, their time is up, or the agent ends.

Any number of calls may sleep: one thread looks for all of them whether the ledger has changed, for the other agent on
the node can't wake us; and one of them asks after a holder for all that wait for it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from dra_driver.model.errors import DriverError

log = logging.getLogger(__name__)

APART_SECONDS, APART_MOST_SECONDS = 0.001, 0.2  # between two that wake; for all of them together
POLL_SECONDS = 0.1  # how often the ledger is looked at while somebody sleeps


class InterruptiblePause:
    """One per agent. `version` is another one after each change of the ledger. `is_over` once the agent ends."""

    def __init__(self, version: Callable[[], object]) -> None:
        self._version = version
        self._condition = threading.Condition()
        self._sleepers = 0
        self._is_watched = False
        self.seen = 0  # how often something has changed
        self.is_over = False

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_over, seconds)

    def await_change(self, seconds: float, seen: int) -> None:
        """Sleep, at most for `seconds`, until something changes, or not at all where it has since `seen`.

        A crowd wakes one after the other: the first takes what was freed, and the others see that when they look.
        """
        with self._condition:
            self._sleepers += 1
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="waiting", daemon=True).start()
            self._condition.wait_for(lambda: self.is_over or self.seen != seen, seconds)
            crowd = 0 if self.is_over else self._sleepers - 1
            self._sleepers -= 1
        time.sleep(random.uniform(0, min(crowd * APART_SECONDS, APART_MOST_SECONDS)))  # noqa: S311 - no secret

    def wake(self) -> None:
        """Wake every call: a device may be free."""
        with self._condition:
            self.seen += 1
            self._condition.notify_all()

    def close(self) -> None:
        """Wake every call for good."""
        with self._condition:
            self.is_over = True
            self._condition.notify_all()

    def _watch(self) -> None:
        """Wake everybody when the ledger changes, until nobody sleeps any more."""
        known = self._look()
        while True:
            time.sleep(POLL_SECONDS)
            now = self._look()
            if now != known:
                known = now
                self.wake()
            with self._condition:
                if self.is_over or not self._sleepers:
                    self._is_watched = False
                    return

    def _look(self) -> object:
        try:
            return self._version()
        except DriverError:  # a call meets the fault, and tells of it
            return None


class Looks:
    """Whose turn it is to look at something that many wait for: once in `interval_s` for each key."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._mutex = threading.Lock()
        self._at: dict[str, float] = {}

    def is_due(self, key: str) -> bool:
        """Whether nobody has looked for a while; whoever asks is the one to look now."""
        now = time.monotonic()
        with self._mutex:
            self._at = {known: at for known, at in self._at.items() if now - at < self._interval_s}
            if key in self._at:
                return False
            self._at[key] = now
            return True
