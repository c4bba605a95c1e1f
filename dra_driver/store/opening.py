"""Opening: what is done before a file of the agent is used. One policy for `ledger.db` and `state.db`.

Only one process at a time makes a file or sets a damaged one aside. A file that was set aside stays, with its log.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dra_driver.model.errors import LedgerError, Retry
from dra_driver.store.connections import ledger_error

PAUSE_SECONDS = 0.01  # between two tries to get a lock
_ENDINGS = ("", "-wal", "-shm", "-journal")


@contextmanager
def opening(path: Path, has_passed: Callable[[], bool]) -> Iterator[None]:
    """Prevent other processes from making the file at `path`, or setting it aside, at the same time.

    Raises: LedgerError, also instead of the errors of the system and of SQLite within the context.
    """
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.open").open("w") as lock:
            if not locked_within(lock.fileno(), has_passed):
                raise LedgerError("busy", f"{path} is being opened by another agent", retry=Retry.LATER)
            yield
    except OSError as exc:
        raise LedgerError("cannot-open", f"{path} can't be opened: {exc}") from exc
    except sqlite3.Error as exc:
        raise ledger_error(exc, path) from exc


def locked_within(fd: int, has_passed: Callable[[], bool]) -> bool:
    """Lock a file for this process alone; return False if another process has it locked until `has_passed`."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if has_passed():
                return False
            time.sleep(PAUSE_SECONDS)
        else:
            return True


def move_aside(path: Path, aside: Path) -> None:
    """Rename a damaged file, and its log first, which SQLite would play back into the next one. Raises: OSError."""
    for ending in reversed(_ENDINGS):
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a power failure. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
