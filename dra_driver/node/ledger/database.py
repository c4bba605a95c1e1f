"""Database: one SQLite file that threads and two agents share; jobs come in, durable transactions go out.

Commits are grouped: while one thread commits, the jobs of the others collect, and the next thread commits them all with
one sync. Reads use a connection of their own, and so do commits that need no sync: to switch one connection between
both kinds of commits, SQLite would compile a statement each time (docs/decisions/0014). When another process keeps the
file locked, each caller waits until its own deadline. If the file is moved or removed while it is open, this is noticed
before the next write.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from dra_driver.base.errors import LedgerError, Retry
from dra_driver.base.machine import Deadline

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

BUSY_SECONDS = 5.0  # how long callers without a deadline wait for a locked file
BUSY_PAUSES = (0.001, 0.05)  # between two tries: the first pause and the longest
COPY_SECONDS = 1.0  # how long a copy is used before the file is tried again


class _Pending(Generic[T]):
    """A queued job with its outcome."""

    __slots__ = ("error", "is_done", "is_synced", "job", "result")

    def __init__(self, job: Job[T], *, is_synced: bool) -> None:
        self.job, self.is_synced = job, is_synced
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Database:
    """The open file. With `is_read_only` it is never written.

    If a full disk prevents the file from being opened, `copy` is read in its place, and writing raises `refusal`.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_read_only: bool = False,
        copy: sqlite3.Connection | None = None,
        refusal: LedgerError | None = None,
    ) -> None:
        self.path, self._text = path, os.fspath(path)
        self.refusal = refusal
        self._made_at = time.monotonic()
        self._view = ""
        self._queue: list[_Pending[Any]] = []
        self._queue_mutex = threading.Lock()
        self._write_mutex = threading.Lock()
        self._read_mutex = threading.Lock()
        self._not_before = 0.0  # when to try a locked file again
        try:
            self._synced = copy or connect(path, is_read_only=is_read_only)
            self._unsynced = copy or connect(path, is_read_only=is_read_only, is_synced=False)
            self._writer = self._synced  # the connection of the commit that is under way
            self._reader = copy or connect(path, is_read_only=is_read_only)
            self._inode = 0 if copy else path.stat().st_ino
        except sqlite3.Error as exc:
            raise ledger_error(exc, path) from exc

    def read(
        self, sql: str, values: Sequence[Any] = (), *, deadline: Deadline | None = None, view: str = ""
    ) -> list[sqlite3.Row]:
        """Run one query and return its rows; a `view`, if given, stands in for the table of claims.

        Raises: LedgerError.
        """
        deadline = deadline or Deadline.after(BUSY_SECONDS)
        started, pause = time.monotonic(), BUSY_PAUSES[0]
        while True:
            try:
                with self._read_mutex:
                    if view != self._view:
                        self._show(view)
                    return self._reader.execute(sql, values).fetchall()
            except sqlite3.Error as exc:
                if not is_busy(exc):
                    raise ledger_error(exc, self.path) from exc
                if deadline.has_passed():
                    raise locked(self.path, started) from exc
            time.sleep(pause)
            pause = min(2 * pause, BUSY_PAUSES[1])

    def version(self) -> int:
        """Return a number that changes with every commit of any process. Raises: LedgerError."""
        return int(self.read("PRAGMA data_version", view=self._view)[0][0])

    def write(self, job: Job[T], *, deadline: Deadline | None = None, is_synced: bool = True) -> T:
        """Run a job in a transaction and return its result once it is durable.

        Without `is_synced` the commit survives a killed process, but not a power failure.

        Raises: LedgerError, or what the job raises.
        """
        if self.refusal is not None:
            raise self.refusal
        pending, deadline = _Pending(job, is_synced=is_synced), deadline or Deadline.after(BUSY_SECONDS)
        started, pause = time.monotonic(), BUSY_PAUSES[0]
        with self._queue_mutex:
            self._queue.append(pending)
        while not self._carry_out(pending, deadline):
            if deadline.has_passed() and self._withdraw(pending):
                raise locked(self.path, started)
            time.sleep(pause)
            pause = min(2 * pause, BUSY_PAUSES[1])
        if pending.error is not None:
            raise pending.error
        return pending.result  # type: ignore[return-value]

    def is_current(self) -> bool:
        """Return whether the path still leads to the file that is open here; a copy is current for one second only."""
        if self.refusal is not None:
            return time.monotonic() - self._made_at < COPY_SECONDS
        try:
            return os.stat(self._text).st_ino == self._inode  # noqa: PTH116 - before every read and write
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close both connections; SQLite copies the log into the file when the last process closes it."""
        with self._write_mutex, self._read_mutex, suppress(sqlite3.Error):
            for connection in (self._reader, self._unsynced, self._synced):
                connection.close()

    def _carry_out(self, pending: _Pending[Any], deadline: Deadline) -> bool:
        """Commit all waiting jobs, unless another thread does so or another process has the file locked.

        Return whether this job is done.
        """
        if not self._write_mutex.acquire(timeout=deadline.remaining()):
            return False
        try:
            if pending.is_done or time.monotonic() < self._not_before:
                return pending.is_done
            with self._queue_mutex:
                batch, self._queue = self._queue, []
            if batch and not self._commit(batch):
                self._not_before = time.monotonic() + BUSY_PAUSES[0]
                with self._queue_mutex:
                    self._queue[:0] = batch
            return pending.is_done
        finally:
            self._write_mutex.release()

    def _withdraw(self, pending: _Pending[Any]) -> bool:
        """Take a job out of the queue. Return False if another thread is already carrying it out."""
        with self._queue_mutex:
            if pending not in self._queue:
                return False
            self._queue.remove(pending)
            return True

    def _commit(self, batch: list[_Pending[Any]]) -> bool:
        """Carry out the jobs in one transaction, and record the result or the error of each.

        Return False if the file is locked and nothing was done.
        """
        try:
            # A commit that waits for the disk makes earlier ones durable too: the log that all are in is synced whole.
            self._writer = self._synced if any(pending.is_synced for pending in batch) else self._unsynced
            self._writer.execute("BEGIN IMMEDIATE")
            for pending in batch:
                self._run(pending, is_alone=len(batch) == 1)
            self._writer.execute("COMMIT")
        except BaseException as exc:  # noqa: BLE001 - raised again in the thread that waits for the job
            if is_busy(exc) and not self._writer.in_transaction:
                return False
            self._roll_back()
            error = ledger_error(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            for pending in batch:
                pending.error = pending.error or error
        for pending in batch:
            pending.is_done = True
        return True

    def _show(self, view: str) -> None:
        self._reader.execute("DROP VIEW IF EXISTS temp.claims")
        if view:
            self._reader.execute(f"CREATE TEMP VIEW claims AS {view}")
        self._view = view

    def _run(self, pending: _Pending[Any], *, is_alone: bool) -> None:
        """Run one job of a batch. If the job raises an error, only what it did itself is rolled back."""
        if not is_alone:
            self._writer.execute("SAVEPOINT job")
        try:
            pending.result = pending.job(self._writer)
        except Exception as exc:
            if isinstance(exc, sqlite3.Error) and not isinstance(exc, sqlite3.IntegrityError):
                raise  # a full disk or a broken file fails the whole batch
            pending.error = ledger_error(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            self._writer.execute("ROLLBACK" if is_alone else "ROLLBACK TO job")
            if is_alone:
                self._writer.execute("BEGIN")
        if not is_alone:
            self._writer.execute("RELEASE job")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")


# Connections to the agent's SQLite files: how they are opened, set up and locked, and SQLite's errors as ours.

WAL_PAGES = 240  # at this size the write-ahead log is copied into the file and then overwritten from its start
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=OFF",
    "PRAGMA cache_size=-256",  # in KiB; the ledger is small
    f"PRAGMA wal_autocheckpoint={WAL_PAGES}",
    "PRAGMA temp_store=MEMORY",  # so that a view needs no space on the disk
)
_BUSY_HINT = "find the process other than this driver's agents that has the file open (fuser -v), and end it"
_FAULTS = {
    sqlite3.SQLITE_FULL: ("full", Retry.LATER, "free space on the file system of the plugin's data folder"),
    sqlite3.SQLITE_READONLY: ("read-only", Retry.LATER, "the plugin's data folder must be writable"),
    sqlite3.SQLITE_CANTOPEN: ("cannot-open", Retry.LATER, "the plugin's data folder must exist and be writable"),
    sqlite3.SQLITE_IOERR: ("input-output", Retry.LATER, "check the disk of the plugin's data folder"),
    sqlite3.SQLITE_BUSY: ("busy", Retry.NOW, _BUSY_HINT),
    sqlite3.SQLITE_PROTOCOL: ("busy", Retry.NOW, _BUSY_HINT),
    sqlite3.SQLITE_CORRUPT: ("corrupt", Retry.NOW, ""),
    sqlite3.SQLITE_NOTADB: ("corrupt", Retry.NOW, ""),
}
_WITHOUT_TABLES = ("no such table: claims", "no such table: holds")  # a damaged file may look like an empty one
CORRUPT, BUSY = "ledger.corrupt", "ledger.busy"
# The errors of a full disk: the first when writing; the second beyond a quota, and when there is no room for a
# connection's shared memory.
NO_ROOM = ("ledger.full", "ledger.input-output")


def connect(path: Path, *, is_read_only: bool, is_synced: bool = True) -> sqlite3.Connection:
    """Return a connection that never waits for a lock.

    Without `is_synced`, its commits survive a killed process, but not a power failure. Raises: sqlite3.Error.
    """
    mode = "ro" if is_read_only else "rwc"
    connection = sqlite3.connect(
        f"file:{quoted(path)}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    try:
        for pragma in _PRAGMAS[-1:] if is_read_only else _PRAGMAS:
            connection.execute(pragma)
        if not is_synced:
            connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def open_file(path: Path, patience_s: float, *, is_new: bool = False) -> sqlite3.Connection:
    """Return a connection to a file that is left with the kind of journal that it has, or to a new one.

    It waits `patience_s` seconds for a lock. Opening changes nothing of a damaged file. Raises: sqlite3.Error.
    """
    uri = f"file:{quoted(path)}?mode={'rwc' if is_new else 'rw'}"
    connection = sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None)
    connection.execute("PRAGMA synchronous=EXTRA")
    return connection


def is_busy(exc: BaseException) -> bool:
    """Return whether an error means that another process has the file locked."""
    number = getattr(exc, "sqlite_errorcode", None) or 0
    return number & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL}


def locked(path: Path, started: float) -> LedgerError:
    """Return the error for a file that was locked since `started`, in seconds of monotonic time."""
    waited = time.monotonic() - started
    text = f"{path} was locked by another process, or held up by a slow disk, for {waited:.1f} s"
    return LedgerError("busy", text, hint=_BUSY_HINT, retry=Retry.LATER)


def quoted(path: Path) -> str:
    """Return a path quoted as part of an SQLite URI."""
    return os.fspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def ledger_error(exc: sqlite3.Error, path: Path) -> LedgerError:
    """Return SQLite's error as a LedgerError."""
    number = getattr(exc, "sqlite_errorcode", None) or 0
    is_damaged = str(exc) in _WITHOUT_TABLES or str(exc).startswith("Could not decode")
    kind = sqlite3.SQLITE_CORRUPT if is_damaged else number & 0xFF
    code, retry, hint = _FAULTS.get(kind, ("sqlite", Retry.LATER, ""))
    return LedgerError(code, f"{path}: {exc}", hint=hint, retry=retry)


def has_claims(path: str | Path) -> bool:
    """Return whether the ledger at `path` has claims; one that can't be read counts as having some."""
    if not Path(path).exists():
        return False
    try:
        with closing(sqlite3.connect(f"file:{quoted(Path(path))}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT 1 FROM claims LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True


# Opening: what is done before a file of the agent is used.

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
