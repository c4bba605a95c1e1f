"""Snapshot: a copy of an SQLite file in memory, for a disk so full that the file itself can't be opened for use.

A connection to a file with a write-ahead log needs a file of shared memory beside it, which a full disk may refuse. A
process that has the file to itself can read it without shared memory. If there is no log either, the file is complete.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dra_driver.store.connections import ledger_error, quoted

_OPEN_MODES = (
    ("mode=rw", "NORMAL"),  # uses the shared memory that another process has made
    ("mode=rw", "EXCLUSIVE"),  # needs no shared memory, but no other process may have the file open
    ("immutable=1", "NORMAL"),  # ignores the log
)


def snapshot_of(path: Path) -> sqlite3.Connection:
    """Return a copy of the file at `path`; an empty one if there is no file. Raises: LedgerError."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    copy.row_factory = sqlite3.Row
    if not path.exists():
        return copy
    last_error: sqlite3.Error | None = None
    for mode, locking in _OPEN_MODES:
        if mode == "immutable=1" and _has_log(path):
            continue  # the copy would lack what is in the log
        try:
            with closing(sqlite3.connect(f"file:{quoted(path)}?{mode}", uri=True, timeout=0)) as connection:
                connection.execute(f"PRAGMA locking_mode={locking}")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                connection.backup(copy)
                return copy
        except sqlite3.Error as exc:
            last_error = exc
    copy.close()
    raise ledger_error(last_error or sqlite3.OperationalError("it can't be read"), path)


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0
