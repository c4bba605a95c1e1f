"""Reports on daemons, made from memory alone.

In: what is known of a daemon. Out: whether it is ready, and why not.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.mps.folder import DaemonRecord, Folder
from dra_driver.mps.supervision.entries import DaemonEntry


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """The report on one daemon. `error` is why it is not ready, or its last fault."""

    state: DaemonRecord
    at: Folder
    is_ready: bool
    restarts: int
    error: str


def report_of(state: DaemonRecord, entry: DaemonEntry) -> DaemonReport:
    """Return the report on the daemon of an entry, whose record is `state`."""
    is_served = state.is_wanted and state.was_ready and not entry.error  # one that is being ended takes no client
    is_ready = is_served and state.process is not None and state.process.is_alive()
    return DaemonReport(state, entry.at, is_ready, entry.restarts, entry.error)
