"""The watch over daemons: it notices when one ends, and has it repaired when the next attempt is due.

In: the kernel's notice that a process has ended (pidfd, no polling), and attempts that failed. Out: repairs, each in a
thread of its own; log files kept bounded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dra_driver.mps import children
from dra_driver.mps.processes import ProcessIdentity
from dra_driver.mps.supervision.entries import DaemonEntries, DaemonEntry
from dra_driver.mps.supervision.log_files import bound_logs
from dra_driver.mps.supervision.process_ends import ProcessEnds
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # before the next attempt
STEADY_S = 60.0  # after a daemon has run for this long, the delays start over
_LOGS_S = 60.0
_AGAIN_S = 0.2


class DaemonWatch:
    """The thread that watches over the daemons of `entries`.

    Args:
        entries: of all daemons. The caller of a method that takes an entry holds its lock.
        repair: called with the key of a daemon that is to be started again, or ended; it logs its own faults.
        delays_s: before each attempt to repair a daemon; the last one for all further attempts.
    """

    def __init__(self, entries: DaemonEntries, repair: Callable[[str], None], *, delays_s: tuple[float, ...]) -> None:
        self._entries, self._repair, self._delays_s = entries, repair, delays_s
        self._ends = ProcessEnds()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End the thread, waiting for it for at most that many seconds."""
        self._is_closed = True
        self._ends.wake()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def look_after(self, entry: DaemonEntry, process: ProcessIdentity) -> None:
        """Watch for the end of a process; one that has ended already is looked at in the watching thread."""
        if not self._ends.watch(entry, process):
            entry.due = time.monotonic()
            self._ends.wake()

    def retry_later(self, entry: DaemonEntry) -> None:
        """Schedule the repair of a daemon; the delay grows with the number of attempts."""
        delay = self._delays_s[min(entry.attempts, len(self._delays_s) - 1)]
        entry.attempts += 1
        entry.due = time.monotonic() + delay
        self._ends.wake()

    def drop(self, entry: DaemonEntry) -> None:
        """Watch nothing for an entry any more."""
        self._ends.drop(entry)

    def _run(self) -> None:
        logs_due = time.monotonic() + _LOGS_S
        while not self._is_closed:
            try:
                self._begin_repairs()
                self._await_ends(logs_due)
                children.reap()
                if time.monotonic() >= logs_due:
                    logs_due = time.monotonic() + _LOGS_S
                    bound_logs(entry.at for entry in self._entries.kept())
            except Exception:
                log.exception("MPS daemons not watched")
                time.sleep(_AGAIN_S)

    def _begin_repairs(self) -> None:
        now = time.monotonic()
        for entry in self._entries.kept():
            if entry.due is not None and entry.due <= now:
                entry.due = None
                threading.Thread(target=self._repair, args=(entry.at.key,), name="repair", daemon=True).start()

    def _await_ends(self, until: float) -> None:
        """Sleep until a daemon ends, an attempt is due, or another thread wakes this one."""
        due = min((entry.due for entry in self._entries.kept() if entry.due is not None), default=until)
        ended = self._ends.wait(min(due, until))
        for entry in self._entries.kept():
            if entry.watched and entry.watched[1] in ended:
                self._ended(entry)

    def _ended(self, entry: DaemonEntry) -> None:
        """Record that a daemon ended; if a command is working on it, it is checked afterwards."""
        if not entry.lock.acquire(blocking=False):
            entry.due = time.monotonic() + _AGAIN_S
            return
        try:
            if entry.watched is None or entry.watched[0].is_alive():
                return
            self.drop(entry)
            name = entry.state.device.name if entry.state else entry.at.key
            entry.error = "the MPS control daemon ended by itself"
            log.error("MPS daemon ended by itself", extra=fields(device=name))
            if time.monotonic() - entry.began > STEADY_S:
                entry.attempts = 0
            self.retry_later(entry)
        finally:
            entry.lock.release()
