"""KeptFile: a file in which the agent keeps what it must still know after a restart, and what is done if it fails.

Two cases are told apart. While the file is *unavailable* (locked, no descriptors, a full or faulty disk, no rights),
nothing is renamed or overwritten: it is tried again, and until then no device is offered that was not offered before.
A *damaged* file is set aside by the instance with the node's role. What it held is lost then, so devices are checked
again before they are offered; this is still known after a crash, because the file that was set aside stays.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from dra_driver.model.errors import LedgerError, Retry
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)
T = TypeVar("T")

BUSY_SECONDS = 2.0
_HINT = "the plugin's data folder must exist and be writable, with free space; it is tried again"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DAMAGE_TEXTS = ("no such table", "Could not decode")


class KeptFile:
    """One file. Its errors have the two codes of `codes`: when it is unavailable (LATER), and damaged (NEVER)."""

    def __init__(self, path: Path, codes: tuple[str, str]) -> None:
        self.path, (self._unavailable, self._damaged) = path, codes
        self._aside = path.with_name(f"{path.name}.damaged")

    def exists(self) -> bool:
        """Return whether there is a file. Raises: LedgerError if that can't be seen."""
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.unavailable(error) from error
        return True

    @property
    def was_set_aside(self) -> bool:
        """Return whether a damaged file was set aside, so that what is missing now may have been in it."""
        return self._aside.exists()

    def set_aside(self) -> None:
        """Rename a damaged file, so that the next write begins a new one. Raises: LedgerError if that is impossible."""
        journal = self.path.with_name(f"{self.path.name}-journal")
        try:
            with suppress(FileNotFoundError):  # first, because SQLite would play it back into the new file
                journal.replace(self._aside.with_name(f"{self._aside.name}-journal"))
            self.path.replace(self._aside)
        except OSError as error:
            raise self.unavailable(error) from error
        keys = fields(code=f"ledger.{self._damaged}", file=str(self._aside))
        log.error("a file of the agent is damaged and was set aside", extra=keys)

    def unavailable(self, error: Exception) -> LedgerError:
        """Return the error for a file that can't be used now."""
        return LedgerError(self._unavailable, f"{self.path}: {error}", hint=_HINT, retry=Retry.LATER)

    def damaged(self, error: object) -> LedgerError:
        """Return the error for a file whose content can't be read."""
        return LedgerError(self._damaged, f"{self.path} is damaged: {error}", retry=Retry.NEVER)


class KeptDatabase(KeptFile):
    """A small SQLite file with these tables. Every call opens it, because calls are rare."""

    def __init__(self, path: Path, codes: tuple[str, str], tables: Sequence[str]) -> None:
        super().__init__(path, codes)
        self._tables = tables

    def read(self, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Return what `work` reads, or `nothing` if there is no file. Raises: LedgerError.

        The file is opened for writing, so that SQLite can undo the transaction of a process that was killed in it.
        """

        def checked(connection: sqlite3.Connection) -> T:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ValueError(found)
            return work(connection)

        return self._run(self.path, checked) if self.exists() else nothing

    def write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Change the file in one transaction. Raises: LedgerError."""
        if not self.exists():
            self._make()
        self._run(self.path, work)

    def _make(self) -> None:
        """Make the file with its tables, under another name first: so a file without tables is a damaged one."""
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            new.unlink(missing_ok=True)
            self._run(new, lambda connection: [connection.execute(table) for table in self._tables], "rwc")
            new.replace(self.path)
        except OSError as error:
            raise self.unavailable(error) from error

    def _run(self, path: Path, work: Callable[[sqlite3.Connection], T], mode: str = "rw") -> T:
        uri = f"file:{quote(str(path))}?mode={mode}"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection, connection:
                return work(connection)
        except sqlite3.Error as error:
            raise (self.damaged(error) if _is_damage(error) else self.unavailable(error)) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.damaged(error) from error


def is_damaged(error: LedgerError) -> bool:
    """Return whether an error of a kept file means that its content is lost."""
    return error.code.endswith("-damaged")


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None) or 0
    return code & 0xFF in _DAMAGE or str(error).startswith(_DAMAGE_TEXTS)
