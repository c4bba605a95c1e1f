"""Daemon entries: the supervisor's record of each daemon. Only one command at a time may change a device's entry.

In: the keys of daemons' folders. Out: entries, held exclusively.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.model.errors import Retry, SharingError
from dra_driver.mps.daemon_folder import DaemonFolder, DaemonRecord
from dra_driver.mps.processes import ProcessIdentity


@dataclass(slots=True)
class DaemonEntry:
    """One device's daemon in memory. `due` is when to repair it (monotonic seconds); None if that is not needed."""

    folder: DaemonFolder
    lock: threading.Lock = field(default_factory=threading.Lock)
    state: DaemonRecord | None = None
    error: str = ""
    attempts: int = 0
    restarts: int = 0
    began: float = 0.0
    due: float | None = None
    watched: tuple[ProcessIdentity, int] | None = None
    users: int = 0


class DaemonEntries:
    """The entries of the daemons below `root`, by the key of the daemon's folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_key: dict[str, DaemonEntry] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, folder: DaemonFolder) -> DaemonEntry:
        """Add the daemon of a folder that an earlier supervisor left."""
        entry = self._by_key[folder.key] = DaemonEntry(folder)
        return entry

    def all(self) -> list[DaemonEntry]:
        """Return the entries of all daemons, in the order of their folders' keys."""
        with self._lock:
            return [self._by_key[key] for key in sorted(self._by_key)]

    @contextmanager
    def held(self, key: str, deadline: float) -> Iterator[DaemonEntry]:
        """Hold one device's entry exclusively; afterwards, drop it if there is no daemon and no command waits for it.

        Raises: SharingError("sharing.mps-busy") if the entry does not become free before `deadline` (monotonic
        seconds).
        """
        with self._lock:
            entry = self._by_key.setdefault(key, DaemonEntry(DaemonFolder(self._root, key)))
            entry.users += 1
        try:
            if not entry.lock.acquire(timeout=min(threading.TIMEOUT_MAX, max(0.0, deadline - time.monotonic()))):
                raise SharingError("mps-busy", "another command is working on this MPS daemon", retry=Retry.NOW)
            try:
                yield entry
            finally:
                entry.lock.release()
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users and entry.state is None and entry.due is None:
                    self._by_key.pop(key, None)
