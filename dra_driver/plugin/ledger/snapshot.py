"""Snapshot: a copy of an SQLite file in memory, for a disk so full that the file can't be opened for use.

A connection to a file with a write-ahead log needs a file of shared memory beside it, which a full disk may refuse. A
process that is alone with the file can read it without one; where the log is missing too, the file is complete.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dra_driver.plugin.ledger.connections import fault, quoted

_WAYS = (  # with another process's shared memory; alone; without a log
    ("mode=rw", "NORMAL"),
    ("mode=rw", "EXCLUSIVE"),
    ("immutable=1", "NORMAL"),
)


def snapshot_of(path: Path) -> sqlite3.Connection:
    """Return a copy of the file at `path`, empty where there is no file. Raises: LedgerError."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    copy.row_factory = sqlite3.Row
    if not path.exists():
        return copy
    fault_seen: sqlite3.Error | None = None
    for mode, locking in _WAYS:
        if mode == "immutable=1" and _has_log(path):
            continue  # the contents of the log would be missing
        try:
            with closing(sqlite3.connect(f"file:{quoted(path)}?{mode}", uri=True, timeout=0)) as connection:
                connection.execute(f"PRAGMA locking_mode={locking}")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                connection.backup(copy)
                return copy
        except sqlite3.Error as exc:
            fault_seen = exc
    copy.close()
    raise fault(fault_seen or sqlite3.OperationalError("it can't be read"), path)


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0
