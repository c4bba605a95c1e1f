"""Reports on daemons, made from memory without asking the daemon.

In: the entry of a daemon. Out: whether the daemon is ready, and if not, why.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.mps.daemon_folder import DaemonFolder, DaemonRecord
from dra_driver.mps.supervision.entries import DaemonEntry


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """The report on one daemon. `error` is why the daemon is not ready, or its last error."""

    state: DaemonRecord
    folder: DaemonFolder
    is_ready: bool
    restarts: int
    error: str


def report_of(state: DaemonRecord, entry: DaemonEntry) -> DaemonReport:
    """Return the report on the daemon of an entry, whose record is `state`."""
    is_served = state.is_wanted and state.was_ready and not entry.error  # a daemon that is being ended takes no clients
    is_ready = is_served and state.process is not None and state.process.is_alive()
    return DaemonReport(state, entry.folder, is_ready, entry.restarts, entry.error)
