"""Older files: what agents before `state.db` wrote. They are kept up to date for one minor, so that one can go back.

In: the tables of a part of the state. Out: the same in the form of the older file, and back. While one is held, no
older agent writes it. A fingerprint tells whether one has written it since; one that changed is the newer truth.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from dra_driver.model.errors import LedgerError, Retry
from dra_driver.store.connections import open_file
from dra_driver.store.opening import locked_within, move_aside, sync_folder

MAX_BYTES = 1 << 20
_COUNTER = slice(24, 28)  # of an SQLite file: it changes with each commit (SQLite file format, section 1.3.7)

Rows = Mapping[str, list[tuple[object, ...]]]  # by table


class OlderFile:
    """One older file, which holds these tables (name and columns) of the state."""

    def __init__(self, path: Path, tables: Mapping[str, str]) -> None:
        self.path, self._tables = path, tables

    def fingerprint(self) -> str:
        """Return a text that is another one after each change of the file; "" if there is none. Raises: OSError."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                header = file.read(_COUNTER.stop)
        except FileNotFoundError:
            return ""
        return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{header[_COUNTER].hex()}"

    def set_aside(self) -> None:
        """Rename the file, which is damaged. Raises: OSError."""
        move_aside(self.path, self.path.with_name(f"{self.path.name}.damaged"))

    @contextmanager
    def held(self, patience_s: float) -> Iterator[HeldFile]:
        """Keep older agents from writing the file. Raises: OSError, sqlite3.Error, LedgerError."""
        raise NotImplementedError


class HeldFile:
    """An older file that this process alone may write."""

    def rows(self) -> Rows:
        """Return what it holds. Raises: OSError, sqlite3.Error, ValueError if it is damaged."""
        raise NotImplementedError

    def replace(self, rows: Rows) -> None:
        """Replace what it holds, durably. Raises: OSError, sqlite3.Error."""
        raise NotImplementedError


class OlderDatabase(OlderFile):
    """An SQLite file with a rollback journal and the same tables."""

    @contextmanager
    def held(self, patience_s: float) -> Iterator[HeldFile]:
        """Keep older agents from writing the file, if there is one, until it is replaced."""
        if not self.fingerprint():
            yield _NewDatabase(self.path, self._tables)
            return
        with closing(open_file(self.path, patience_s)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield _HeldDatabase(connection, tuple(self._tables))


class _HeldDatabase(HeldFile):
    def __init__(self, connection: sqlite3.Connection, tables: tuple[str, ...]) -> None:
        self._connection, self._tables = connection, tables

    def rows(self) -> Rows:
        (fault,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if fault != "ok":
            raise ValueError(fault)
        if not has_tables(self._connection, self._tables):
            raise ValueError("it lacks tables")
        return rows_of(self._connection, self._tables)

    def replace(self, rows: Rows) -> None:
        fill(self._connection, rows)
        self._connection.execute("COMMIT")


class _NewDatabase(HeldFile):
    def __init__(self, path: Path, tables: Mapping[str, str]) -> None:
        self._path, self._tables = path, tables

    def rows(self) -> Rows:
        return {}

    def replace(self, rows: Rows) -> None:
        """Make the file with its tables, under another name first: so a file without tables is a damaged one."""
        new = self._path.with_name(f".{self._path.name}.new")
        new.unlink(missing_ok=True)
        with closing(open_file(new, 0.0, is_new=True)) as connection:
            make_tables(connection, self._tables)
            connection.execute("BEGIN")
            fill(connection, rows)
            connection.execute("COMMIT")
        new.replace(self._path)
        sync_folder(self._path.parent)


class OlderText(OlderFile):
    """A text file, which lies in the only row of one table. `check` raises ValueError for a damaged one."""

    def __init__(self, path: Path, tables: Mapping[str, str], check: Callable[[str], object]) -> None:
        super().__init__(path, tables)
        self._check = check

    @contextmanager
    def held(self, patience_s: float) -> Iterator[HeldFile]:
        """Keep older agents from writing the file."""
        end = time.monotonic() + patience_s
        with self.path.with_suffix(".lock").open("w") as lock:
            if not locked_within(lock.fileno(), lambda: time.monotonic() >= end):
                raise LedgerError("busy", f"{self.path} is being written by another process", retry=Retry.LATER)
            yield _HeldText(self.path, next(iter(self._tables)), self._check)


class _HeldText(HeldFile):
    def __init__(self, path: Path, table: str, check: Callable[[str], object]) -> None:
        self._path, self._table, self._check = path, table, check

    def rows(self) -> Rows:
        with self._path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        text = content.decode()
        self._check(text)
        return {self._table: [(text,)]}

    def replace(self, rows: Rows) -> None:
        ((text,),) = rows[self._table]
        new = self._path.with_name(f".{self._path.name}")
        with new.open("w", encoding="utf-8") as file:
            file.write(str(text))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        sync_folder(self._path.parent)


def make_tables(connection: sqlite3.Connection, tables: Mapping[str, str]) -> None:
    """Make the tables that are missing."""
    for name, columns in tables.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")


def has_tables(connection: sqlite3.Connection, names: Iterable[str]) -> bool:
    """Return whether all these tables exist."""
    every = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {str(name) for (name,) in every}.issuperset(names)


def rows_of(connection: sqlite3.Connection, tables: tuple[str, ...]) -> Rows:
    """Return all rows of some tables, in their order."""
    return {name: [tuple(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid")] for name in tables}  # noqa: S608


def fill(connection: sqlite3.Connection, rows: Rows) -> None:
    """Replace the rows of some tables."""
    for name, values in rows.items():
        connection.execute(f"DELETE FROM {name}")  # noqa: S608
        for row in values:
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
