"""The watch over daemons: it detects that a daemon has ended, and has it repaired when the next attempt is due.

In: the kernel's notice that a process has ended (pidfd, no polling), and attempts that failed. Out: repairs, each in a
thread of its own, and log files that don't grow without limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dra_driver.model.errors import NodeError
from dra_driver.mps import children
from dra_driver.mps.processes import ProcessIdentity
from dra_driver.mps.supervision.entries import DaemonEntries, DaemonEntry
from dra_driver.mps.supervision.log_files import bound_logs
from dra_driver.mps.supervision.process_ends import ProcessEnds
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.thread_start import start_thread

log = logging.getLogger(__name__)

DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # before the first, second, … attempt to repair a daemon
STEADY_S = 60.0  # after a daemon has run for this long, the delays start over
_LOGS_S = 60.0
_AGAIN_S = 0.2
_NO_THREAD_S = 1.0  # until the next attempt to start the thread of a repair


class DaemonWatch:
    """The thread that watches over the daemons of `entries`.

    Args:
        entries: the entries of all daemons. The caller of a method that takes an entry holds the entry's lock.
        repair: called with the key of a daemon that is to be started again, or ended; it logs its own errors.
        delays_s: seconds before each attempt to repair a daemon; the last one applies to all further attempts.
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
        """End the thread, and wait for its end for at most `seconds`."""
        self._is_closed = True
        self._ends.wake()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def watch_process(self, entry: DaemonEntry, process: ProcessIdentity) -> None:
        """Watch for the end of a process; if it has ended already, let the watching thread repair it at once."""
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
        """Stop watching the process of an entry."""
        self._ends.drop(entry)

    def _run(self) -> None:
        logs_due = time.monotonic() + _LOGS_S
        while not self._is_closed:
            try:
                self._start_repairs()
                self._wait_for_ends(logs_due)
                children.reap()
                if time.monotonic() >= logs_due:
                    logs_due = time.monotonic() + _LOGS_S
                    bound_logs(entry.folder for entry in self._entries.all())
            except Exception:
                log.exception("watching MPS daemons failed")
                time.sleep(_AGAIN_S)

    def _start_repairs(self) -> None:
        now = time.monotonic()
        for entry in self._entries.all():
            if entry.due is not None and entry.due <= now:
                entry.due = None
                try:
                    start_thread(
                        threading.Thread(target=self._repair, args=(entry.folder.key,), name="repair", daemon=True)
                    )
                except NodeError as error:
                    entry.due = now + _NO_THREAD_S
                    log.warning("MPS daemon not repaired yet", extra=fields(code=error.code, err=str(error)))

    def _wait_for_ends(self, until: float) -> None:
        """Sleep until a daemon ends, an attempt to repair is due, or another thread wakes this one."""
        due = min((entry.due for entry in self._entries.all() if entry.due is not None), default=until)
        ended = self._ends.wait(min(due, until))
        for entry in self._entries.all():
            if entry.watched and entry.watched[1] in ended:
                self._handle_end(entry)

    def _handle_end(self, entry: DaemonEntry) -> None:
        """Record that a daemon ended; if a command holds its entry, check again a little later."""
        if not entry.lock.acquire(blocking=False):
            entry.due = time.monotonic() + _AGAIN_S
            return
        try:
            if entry.watched is None or entry.watched[0].is_alive():
                return
            self.drop(entry)
            name = entry.state.device.name if entry.state else entry.folder.key
            entry.error = "the MPS control daemon ended unexpectedly"
            log.error("MPS daemon ended unexpectedly", extra=fields(device=name))
            if time.monotonic() - entry.began > STEADY_S:
                entry.attempts = 0
            self.retry_later(entry)
        finally:
            entry.lock.release()
