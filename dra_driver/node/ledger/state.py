"""State: `state.db` beside the ledger, with what the agent must still know of its node besides the claims.

In: jobs in SQL, each for one part of the state. Out: durable transactions. Any number of processes may use the file;
each call opens it, because calls are rare. Two cases are told apart. While a file is *unavailable* (locked, no
descriptors, a full or faulty disk, no rights), nothing is renamed or overwritten: the caller tries again, and until
then offers no device that was not offered before. A *damaged* file is set aside by the instance with the node's role.
What it held is lost then, so devices are checked again before they are offered; the file that was set aside tells so.

The file has a rollback journal, as the older files have: one with a write-ahead log can't even be read on a full disk,
because SQLite needs a file of shared memory beside it.

For one minor each part has an older file too (`older_files`). It is written in the same transaction, before the state;
so after a kill in between it is the newer one. A newer one is read in the place of the state, and taken over by the
next write.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dra_driver.base.errors import LedgerError, Retry
from dra_driver.base.machine import stamp_of
from dra_driver.base.telemetry.logs import fields
from dra_driver.node.ledger.database import CORRUPT, ledger_error, move_aside, open_file, opening
from dra_driver.node.ledger.older_files import (
    HeldFile,
    OlderDatabase,
    OlderFile,
    OlderText,
    Rows,
    fill,
    fingerprint_of,
    has_tables,
    make_tables,
    rows_of,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

FILE_NAME = "state.db"
MAJOR, MINOR = 1, 0
BUSY_SECONDS = 2.0
UNCLEAR_NS = 100_000_000  # another change within this time may leave a file with the same time
_OWN_TABLES = {"older_files": "part TEXT PRIMARY KEY, fingerprint TEXT NOT NULL"}
_HINT = "the plugin's data folder must exist and be writable, with free space; it is tried again"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the state: its tables with their columns, and the older file that has the same.

    Its errors have the two codes: when it is unavailable (LATER), and damaged (NEVER). If the older file is a text,
    `check` raises an error for a damaged one, and there is one table with one column.
    """

    name: str
    damaged: str
    tables: Mapping[str, str]
    older: str
    check: Callable[[str], object] | None = None

    def older_file(self, folder: Path) -> OlderFile:
        """Return the older file in a folder."""
        path = folder / self.older
        return OlderText(path, self.tables, self.check) if self.check else OlderDatabase(path, self.tables)


class StatePart:
    """One part of the state of one node. A caller waits at most about `patience_s` for other processes."""

    def __init__(self, folder: Path, part: Part, *, patience_s: float = BUSY_SECONDS) -> None:
        self.path, self._part, self._patience_s = folder / FILE_NAME, part, patience_s
        self.older = part.older_file(folder)
        self._names = tuple(part.tables)

    def read(self, job: Callable[[sqlite3.Connection], T], nothing: T, *, is_older_read: bool = True) -> T:
        """Return what `job` reads, or `nothing` if the part was never written. Nothing is changed.

        The older file is read if it is newer, unless `is_older_read` is false. Raises: LedgerError.
        """
        with self._errors():
            if is_older_read and (rows := self._newer_rows()) is not None:
                with closing(sqlite3.connect(":memory:")) as copy:
                    make_tables(copy, self._part.tables)
                    fill(copy, rows)
                    return job(copy)
            if not self._exists():
                return nothing
            with closing(self._opened()) as connection:
                _check(connection)
                return job(connection) if has_tables(connection, self._names) else nothing

    def write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Change the part in one transaction, and the older file with it. Return the job's result.

        If this fails, the change may still be made: the older file may have been written. Raises: LedgerError.
        """
        with self._errors(), self.older.held(self._patience_s) as older:
            if not self._exists():
                self._make()
            with closing(self._opened()) as connection:
                _check(connection)
                connection.execute("BEGIN IMMEDIATE")
                make_tables(connection, self._part.tables)
                before = older.rows()
                if before is not None and fingerprint_of(before) != self._recorded(connection):
                    fill(connection, before)
                result = job(connection)
                self._keep_older(connection, older, before)
                connection.execute("COMMIT")
                return result

    def take_over(self) -> None:
        """Write what an older agent wrote into the state, so that it outlives damage to the older file.

        Nothing is written if there is nothing new. Raises: LedgerError.
        """
        with self._errors():
            is_newer = self._newer_rows() is not None
        if is_newer:
            self.write(lambda _: None)

    def is_lost(self) -> bool:
        """Return whether a damaged file was set aside, so that what is missing now may have been in it."""
        return self._aside.exists() or self.older.aside.exists()

    def stamp(self) -> Hashable | None:
        """Return a value that is another one after each change; None if a change may not show yet."""
        stamps = [stamp_of(path) for path in (self.path, self.older.path)]
        latest = max((stamp.mtime_ns for stamp in stamps if stamp is not None), default=0)
        return tuple(stamps) if abs(time.time_ns() - latest) > UNCLEAR_NS else None

    def written_at(self) -> float | None:
        """Return when the part was written last, in seconds since 1970; None if it never was."""
        stamp = stamp_of(self.older.path) or stamp_of(self.path)  # which has other parts too
        return stamp.mtime_ns / 1e9 if stamp is not None else None

    def set_aside(self) -> None:
        """Set aside the file that is damaged; what the other one holds of the part counts then. Raises: LedgerError."""
        if not self.set_aside_state():
            self._lose()
            self._log_damage(self.older.path)

    def set_aside_state(self) -> bool:
        """Set the state aside if it is damaged, and return whether it was. Raises: LedgerError."""
        with self._errors(), self._opening():
            if not self._is_state_damaged():
                return False
            move_aside(self.path, self._aside)
        self._log_damage(self._aside)
        return True

    def _log_damage(self, file: Path) -> None:
        keys = fields(code=f"ledger.{self._part.damaged}", file=str(file))
        log.error("a file of the agent is damaged and was set aside", extra=keys)

    def unavailable(self, error: object) -> LedgerError:
        """Return the error for a file that can't be used now."""
        return LedgerError(self._part.name, str(error), hint=_HINT, retry=Retry.LATER)

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f"{FILE_NAME}.damaged")

    def _lose(self) -> None:
        """Set the older file aside, and forget what the state has of the part, which may be older still."""
        with self._errors():
            self.older.set_aside()
            if self._exists():
                with closing(self._opened()) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    make_tables(connection, self._part.tables)
                    fill(connection, {name: [] for name in self._names})
                    connection.execute("COMMIT")

    def _is_state_damaged(self) -> bool:
        try:
            with self._errors():
                if self._exists():
                    with closing(self._opened()) as connection:
                        _check(connection)
        except LedgerError as error:
            if is_damaged(error):
                return True
            raise
        return False

    def _newer_rows(self) -> Rows | None:
        """Return what the older file holds if that is not what was read or written here last."""
        rows = self.older.rows(self._patience_s)
        return rows if rows is not None and fingerprint_of(rows) != self._known_fingerprint() else None

    def _known_fingerprint(self) -> str:
        if not self._exists():
            return ""
        with closing(self._opened()) as connection:
            _check(connection)
            return self._recorded(connection)

    def _recorded(self, connection: sqlite3.Connection) -> str:
        sql = "SELECT fingerprint FROM older_files WHERE part = ?"
        row = connection.execute(sql, (self._part.name,)).fetchone()
        return str(row[0]) if row else ""

    def _keep_older(self, connection: sqlite3.Connection, older: HeldFile, before: Rows | None) -> None:
        """Write the rows into the older file too, if it held others before, and record their fingerprint."""
        rows = rows_of(connection, self._names)
        if before is None and not any(rows.values()):
            return
        if rows != before:
            older.replace(rows)
        if (fingerprint := fingerprint_of(rows)) != self._recorded(connection):
            sql = "INSERT OR REPLACE INTO older_files VALUES (?, ?)"
            connection.execute(sql, (self._part.name, fingerprint))

    def _exists(self) -> bool:
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        return True

    def _make(self) -> None:
        """Make the file under another name first: so a file without tables is a damaged one."""
        new = self.path.with_name(f".{FILE_NAME}.new")
        self.path.parent.stat()  # a folder that was removed is not made again
        with self._opening():
            if self._exists():
                return
            new.unlink(missing_ok=True)
            with closing(open_file(new, 0.0, is_new=True)) as connection:
                make_tables(connection, _OWN_TABLES)
                connection.execute(f"PRAGMA user_version={MAJOR * 1000 + MINOR}")
            new.replace(self.path)

    def _opening(self) -> AbstractContextManager[None]:
        end = time.monotonic() + self._patience_s
        return opening(self.path, lambda: time.monotonic() >= end)

    def _opened(self) -> sqlite3.Connection:
        return open_file(self.path, self._patience_s)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise each error as one of the two kinds: unavailable, or damaged."""
        try:
            yield
        except (OSError, sqlite3.Error) as exc:
            error = ledger_error(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            is_damage = isinstance(error, LedgerError) and error.code == CORRUPT
            raise (self._damaged(exc) if is_damage else self.unavailable(error)) from exc
        except LedgerError as error:
            if error.code in (f"ledger.{self._part.name}", f"ledger.{self._part.damaged}"):
                raise
            raise (self._damaged(error) if error.code == CORRUPT else self.unavailable(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise self._damaged(exc) from exc

    def _damaged(self, error: object) -> LedgerError:
        text = f"{self.path} or {self.older.path.name} is damaged: {error}"
        return LedgerError(self._part.damaged, text, retry=Retry.NEVER)


def is_damaged(error: LedgerError) -> bool:
    """Return whether an error of the state means that its content is lost."""
    return error.code.endswith("-damaged")


def _check(connection: sqlite3.Connection) -> None:
    """Raise ValueError for a damaged file, and LedgerError for one of a newer major version."""
    (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if fault != "ok":
        raise ValueError(fault)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version == 0:
        raise ValueError("it has no tables")
    if version // 1000 > MAJOR:
        raise LedgerError("newer", "a newer major version wrote it", retry=Retry.LATER)
