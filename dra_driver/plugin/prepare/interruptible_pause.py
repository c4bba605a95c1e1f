"""InterruptiblePause: calls sleep here until a device may be free, their time is up, or the agent ends.

Any number of calls may sleep. One thread checks for all of them whether the ledger has changed, because another agent
on the node can't wake them. Likewise, of all calls that wait for the same holder, one checks whether it still exists.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Protocol

from dra_driver.model.errors import DriverError
from dra_driver.telemetry.thread_start import start_thread

log = logging.getLogger(__name__)

APART_SECONDS, APART_MAX_SECONDS = 0.001, 0.2  # the pause between two woken calls, and the most of all such pauses
POLL_SECONDS = 0.1  # between two checks of the ledger while a call sleeps


class Versioned(Protocol):
    """A ledger, of which only the changes matter here."""

    def version(self) -> object:
        """Return a value that is different after every change, by whatever process. Raises: LedgerError."""


class InterruptiblePause:
    """The sleeping calls of one agent, which are woken by changes of its ledger. `is_over`: whether the agent ends."""

    def __init__(self, ledger: Versioned) -> None:
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._condition = threading.Condition(self._mutex)
        self._sleepers = 0
        self._is_watched = False
        self.seen = 0  # the number of changes so far
        self.is_over = False

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the agent ends."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_over, seconds)

    def await_change(self, seconds: float, seen: int) -> None:
        """Sleep until something changes, for at most `seconds`. Return at once if something has changed since `seen`.

        Calls go on one after the other: the first takes what has become free, and the others see that it is taken.

        Raises: NodeError("node.thread").
        """
        with self._condition:
            if not self._is_watched:
                start_thread(threading.Thread(target=self._watch, name="waiting", daemon=True))
                self._is_watched = True
            self._sleepers += 1
            self._condition.wait_for(lambda: self.is_over or self.seen != seen, seconds)
            others = 0 if self.is_over else self._sleepers - 1
            self._sleepers -= 1
        time.sleep(random.uniform(0, min(others * APART_SECONDS, APART_MAX_SECONDS)))  # noqa: S311 - no secret

    def wake(self) -> None:
        """Wake every call, because a device may be free."""
        with self._mutex:
            self.seen += 1
            if self._sleepers:
                self._condition.notify_all()

    def close(self) -> None:
        """Wake every call, and prevent calls from sleeping from now on."""
        with self._condition:
            self.is_over = True
            self._condition.notify_all()

    def _watch(self) -> None:
        """Wake every call when the ledger changes, until no call is sleeping."""
        known = self._ledger_version()
        while True:
            time.sleep(POLL_SECONDS)
            with self._condition:  # checked before the ledger is read, because it may have been closed by now
                if self.is_over or not self._sleepers:
                    self._is_watched = False
                    return
            now = self._ledger_version()
            if now != known:
                known = now
                self.wake()

    def _ledger_version(self) -> object:
        try:
            return self._ledger.version()
        except DriverError:  # a call will meet the same error, and report it
            return None


class CheckTimer:
    """Decides which of many waiting calls checks something: one call in `interval_s` seconds for each key."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._mutex = threading.Lock()
        self._at: dict[str, float] = {}

    def is_due(self, key: str) -> bool:
        """Return whether no call has checked within the interval; if so, the caller has to check."""
        now = time.monotonic()
        with self._mutex:
            self._at = {known: at for known, at in self._at.items() if now - at < self._interval_s}
            if key in self._at:
                return False
            self._at[key] = now
            return True
