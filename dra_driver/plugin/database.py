"""Database: one SQLite file that threads and two agents share; jobs come in, durable transactions go out.

Commits are grouped: while one thread commits, the jobs of the others collect, and the next thread commits them all with
one sync. Reads go over a connection of their own and wait for nobody. Faults of SQLite become LedgerErrors here.
A file that was moved aside or removed under us is noticed before the next write.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from dra_driver.model.errors import LedgerError, Retry

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

BUSY_SECONDS = 5.0
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=OFF",
    "PRAGMA cache_size=-256",  # KiB: the ledger is small
)
_FAULTS = {
    sqlite3.SQLITE_FULL: ("full", Retry.LATER, "free space on the file system of the plugin's data folder"),
    sqlite3.SQLITE_READONLY: ("read-only", Retry.LATER, "the plugin's data folder must be writable"),
    sqlite3.SQLITE_CANTOPEN: ("cannot-open", Retry.LATER, "the plugin's data folder must exist and be writable"),
    sqlite3.SQLITE_IOERR: ("input-output", Retry.LATER, "look at the disk of the plugin's data folder"),
    sqlite3.SQLITE_BUSY: ("busy", Retry.NOW, ""),
    sqlite3.SQLITE_LOCKED: ("busy", Retry.NOW, ""),
    sqlite3.SQLITE_CORRUPT: ("corrupt", Retry.NOW, ""),
    sqlite3.SQLITE_NOTADB: ("corrupt", Retry.NOW, ""),
}
CORRUPT = "ledger.corrupt"


class _Pending(Generic[T]):
    """A job on its way, with its outcome."""

    __slots__ = ("error", "is_done", "is_synced", "job", "result")

    def __init__(self, job: Job[T], *, is_synced: bool) -> None:
        self.job, self.is_synced = job, is_synced
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Database:
    """The open file. `is_read_only` opens it without ever writing to it."""

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        self.path, self._text = path, os.fspath(path)
        self._is_synced = True  # as _PRAGMAS say
        self._queue: list[_Pending[Any]] = []
        self._queue_mutex = threading.Lock()
        self._write_mutex = threading.Lock()
        self._read_mutex = threading.Lock()
        try:
            self._writer = _connect(path, is_read_only=is_read_only)
            self._reader = _connect(path, is_read_only=is_read_only)
            self._inode = path.stat().st_ino
        except sqlite3.Error as exc:
            raise fault(exc, path) from exc

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run one query. Raises: LedgerError."""
        try:
            with self._read_mutex:
                return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise fault(exc, self.path) from exc

    def write(self, job: Job[T], *, is_synced: bool = True) -> T:
        """Run a job in a transaction and return once it is durable; unsynced it outlives a kill, but no power failure.

        Raises: LedgerError, or what the job raises.
        """
        pending = _Pending(job, is_synced=is_synced)
        with self._queue_mutex:
            self._queue.append(pending)
        with self._write_mutex:
            if not pending.is_done:  # else the thread before us took it along
                with self._queue_mutex:
                    batch, self._queue = self._queue, []
                self._commit(batch)
        if pending.error is not None:
            raise pending.error
        return pending.result  # type: ignore[return-value]

    def is_current(self) -> bool:
        """Say whether the path still names the file that is open here."""
        try:
            return os.stat(self._text).st_ino == self._inode  # noqa: PTH116 - before every read and write
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close both connections; the last one of all processes folds the log into the file."""
        with self._write_mutex, self._read_mutex, suppress(sqlite3.Error):
            self._reader.close()
            self._writer.close()

    def _commit(self, batch: list[_Pending[Any]]) -> None:
        try:
            self._sync(any(pending.is_synced for pending in batch))
            self._writer.execute("BEGIN IMMEDIATE")
            for pending in batch:
                self._run(pending, is_alone=len(batch) == 1)
            self._writer.execute("COMMIT")
        except BaseException as exc:  # noqa: BLE001 - handed to whoever waits for the job
            self._roll_back()
            error = fault(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            for pending in batch:
                pending.error = pending.error or error
        finally:
            for pending in batch:
                pending.is_done = True

    def _sync(self, is_wanted: bool) -> None:
        """Say whether the next commit waits for the disk; one that does makes those before it durable too."""
        if is_wanted != self._is_synced:
            self._writer.execute(f"PRAGMA synchronous={'FULL' if is_wanted else 'NORMAL'}")
            self._is_synced = is_wanted

    def _run(self, pending: _Pending[Any], *, is_alone: bool) -> None:
        """Run one job of a batch; its own fault rolls back nothing but itself."""
        if not is_alone:
            self._writer.execute("SAVEPOINT job")
        try:
            pending.result = pending.job(self._writer)
        except Exception as exc:
            if isinstance(exc, sqlite3.Error) and not isinstance(exc, sqlite3.IntegrityError):
                raise  # full disk, broken file: the whole batch fails alike
            pending.error = fault(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            self._writer.execute("ROLLBACK" if is_alone else "ROLLBACK TO job")
            if is_alone:
                self._writer.execute("BEGIN")
        if not is_alone:
            self._writer.execute("RELEASE job")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")


def _connect(path: Path, *, is_read_only: bool) -> sqlite3.Connection:
    mode = "ro" if is_read_only else "rwc"
    connection = sqlite3.connect(
        f"file:{quoted(path)}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    try:
        if not is_read_only:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def quoted(path: Path) -> str:
    """Give a path as part of an SQLite URI."""
    return os.fspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def fault(exc: sqlite3.Error, path: Path) -> LedgerError:
    """Turn SQLite's error into ours."""
    number = getattr(exc, "sqlite_errorcode", None) or 0
    code, retry, hint = _FAULTS.get(number & 0xFF, ("sqlite", Retry.LATER, ""))
    return LedgerError(code, f"ledger {path}: {exc}", hint=hint, retry=retry)
