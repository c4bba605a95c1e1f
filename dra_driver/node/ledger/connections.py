"""Connections to the agent's SQLite files: how they are opened, set up and locked, and SQLite's errors as ours."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from dra_driver.base.errors import LedgerError, Retry

# Connections to the agent's SQLite files, how they are set up, and SQLite's errors as LedgerErrors.

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


MAX_BYTES = 1 << 20

Rows = Mapping[str, list[tuple[object, ...]]]  # by table
