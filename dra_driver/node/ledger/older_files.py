"""Older files: what agents before `state.db` wrote. They are kept up to date for one minor, so that one can go back.

In: the tables of a part of the state. Out: the same in the form of the older file, and back. While one is held, no
older agent writes it. If its content is not what was read or written here last, an older agent wrote the newer truth.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import LedgerError, Retry
from dra_driver.node.ledger.database import locked_within, move_aside, open_file, sync_folder

MAX_BYTES = 1 << 20  # of an older file that is a text
Rows = Mapping[str, list[tuple[object, ...]]]  # by table


class OlderFile(ABC):
    """One older file, which holds these tables (name and columns) of the state."""

    def __init__(self, path: Path, tables: Mapping[str, str]) -> None:
        self.path, self._tables = path, tables
        self.aside = path.with_name(f"{path.name}.damaged")

    def set_aside(self) -> None:
        """Rename the file, which is damaged. Raises: OSError."""
        move_aside(self.path, self.aside)

    @abstractmethod
    def rows(self, patience_s: float = 0.0) -> Rows | None:
        """Return what the file holds; None if there is none.

        Raises: OSError, sqlite3.Error; ValueError or another error of its content if it is damaged.
        """

    @abstractmethod
    def held(self, patience_s: float) -> AbstractContextManager[HeldFile]:
        """Keep older agents from writing the file. Raises: OSError, sqlite3.Error, LedgerError."""


class HeldFile(Protocol):
    """An older file that this process alone may write."""

    def rows(self) -> Rows | None:
        """Return what the file holds, as `OlderFile.rows` does."""

    def replace(self, rows: Rows) -> None:
        """Replace what it holds, durably. Raises: OSError, sqlite3.Error."""


class OlderDatabase(OlderFile):
    """An SQLite file with a rollback journal and the same tables."""

    def rows(self, patience_s: float = 0.0) -> Rows | None:
        """Return what the file holds; None if there is none."""
        if not self._exists():
            return None
        with closing(open_file(self.path, patience_s)) as connection:
            connection.execute("BEGIN")
            return _checked_rows(connection, self._tables)

    @contextmanager
    def held(self, patience_s: float) -> Iterator[HeldFile]:
        """Keep older agents from writing the file, if there is one, until it is replaced."""
        if not self._exists():
            yield _NewDatabase(self.path, self._tables)
            return
        with closing(open_file(self.path, patience_s)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield _HeldDatabase(connection, self._tables)

    def _exists(self) -> bool:
        """Return whether there is a file. It is never opened but by SQLite, whose locks would end when it is closed."""
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        return True


class _HeldDatabase:
    def __init__(self, connection: sqlite3.Connection, tables: Iterable[str]) -> None:
        self._connection, self._tables = connection, tables

    def rows(self) -> Rows | None:
        return _checked_rows(self._connection, self._tables)

    def replace(self, rows: Rows) -> None:
        fill(self._connection, rows)
        self._connection.execute("COMMIT")


class _NewDatabase:
    def __init__(self, path: Path, tables: Mapping[str, str]) -> None:
        self._path, self._tables = path, tables

    def rows(self) -> Rows | None:
        return None

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
    """A text file, which lies in the only row of one table. `check` raises an error for a damaged one."""

    def __init__(self, path: Path, tables: Mapping[str, str], check: Callable[[str], object]) -> None:
        super().__init__(path, tables)
        self._check = check

    def rows(self, patience_s: float = 0.0) -> Rows | None:
        """Return what the file holds; None if there is none. It is replaced whole, so nobody has to wait."""
        del patience_s
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        text = content.decode()
        self._check(text)
        return {self._table: [(text,)]}

    @contextmanager
    def held(self, patience_s: float) -> Iterator[HeldFile]:
        """Keep older agents from writing the file."""
        end = time.monotonic() + patience_s
        with self.path.with_suffix(".lock").open("w") as lock:
            if not locked_within(lock.fileno(), lambda: time.monotonic() >= end):
                raise LedgerError("busy", f"{self.path} is being written by another process", retry=Retry.LATER)
            yield self

    def replace(self, rows: Rows) -> None:
        """Replace the text, while the file is held. Raises: OSError."""
        ((text,),) = rows[self._table]
        new = self.path.with_name(f".{self.path.name}")
        with new.open("w", encoding="utf-8") as file:
            file.write(str(text))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        sync_folder(self.path.parent)

    @property
    def _table(self) -> str:
        return next(iter(self._tables))


def fingerprint_of(rows: Rows) -> str:
    """Return a text that is another one for other rows."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def make_tables(connection: sqlite3.Connection, tables: Mapping[str, str]) -> None:
    """Make the tables that are missing."""
    for name, columns in tables.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")


def has_tables(connection: sqlite3.Connection, names: Iterable[str]) -> bool:
    """Return whether all these tables exist."""
    every = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {str(name) for (name,) in every}.issuperset(names)


def rows_of(connection: sqlite3.Connection, tables: Iterable[str]) -> Rows:
    """Return all rows of some tables, in their order."""
    return {name: [tuple(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid")] for name in tables}  # noqa: S608


def fill(connection: sqlite3.Connection, rows: Rows) -> None:
    """Replace the rows of some tables."""
    for name, values in rows.items():
        connection.execute(f"DELETE FROM {name}")  # noqa: S608
        for row in values:
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608


def _checked_rows(connection: sqlite3.Connection, tables: Iterable[str]) -> Rows:
    (fault,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if fault != "ok":
        raise ValueError(fault)
    if not has_tables(connection, tables):
        raise ValueError("it lacks tables")
    return rows_of(connection, tables)
