"""Ledger file: opens the ledger's database, checks and upgrades it, and opens it again if it breaks or is removed.

In: the path. Out: an open Database of a known version, or a copy in memory if a full disk prevents opening it. A
corrupt file is moved aside, and a corrupt or missing one is rebuilt from the claims' CDI files. A file of a newer major
version is opened read-only.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dra_driver.model.errors import LedgerError, PrepareError, Retry
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.claim_files import ClaimFiles
from dra_driver.plugin.ledger.database import BUSY_PAUSES, Database
from dra_driver.plugin.ledger.ledger_rows import MAJOR, MINOR, add_tables, create_tables
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.ledger.snapshot import snapshot_of
from dra_driver.store.connections import BUSY, CORRUPT, NO_ROOM
from dra_driver.store.opening import move_aside, opening
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")


class LedgerFile:
    """The file at `path`. `opened` is called each time after the file was opened for writing."""

    def __init__(
        self,
        path: Path,
        *,
        files: ClaimFiles,
        reads_only: bool,
        opened: Callable[[], None],
    ) -> None:
        self.path = path
        self._files, self._reads_only, self._was_opened = files, reads_only, opened
        self._reopening = threading.Lock()
        self._database: Database | None = None
        self.is_read_only = False
        self.problem = ""  # why the ledger keeps the agent from being ready, in words

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def use(self, use: Callable[[Database], T], deadline: Deadline) -> T:
        """Call `use` with the open file; if it is corrupt or no longer the one at `path`, open it again first."""
        database = self.current(deadline)
        try:
            return use(database)
        except LedgerError as error:
            if error.code != CORRUPT or self.is_read_only:
                raise
        with self._reopening:
            if self._database is database:
                database.close()
                self._database = None
        return use(self.current(deadline))

    def current(self, deadline: Deadline) -> Database:
        """Return the open file, trying until `deadline` while another process keeps it locked. Raises: LedgerError."""
        database = self._database
        if database is not None and database.is_current():
            return database
        pause = BUSY_PAUSES[0]
        while True:
            try:
                return self._ensure_open(deadline)
            except LedgerError as error:
                self.problem = str(error)
                if error.code != BUSY or deadline.has_passed():
                    raise
            time.sleep(pause)
            pause = min(2 * pause, BUSY_PAUSES[1])

    def _ensure_open(self, deadline: Deadline) -> Database:
        """Return the open file, after opening it unless another thread has done so in the meantime."""
        if not self._reopening.acquire(timeout=deadline.remaining()):
            raise LedgerError("busy", f"ledger {self.path} is being opened by another call", retry=Retry.LATER)
        try:
            if self._database is None or not self._database.is_current():
                self._database = self._open(deadline)
                if not self.is_read_only:
                    self.problem = str(self._database.refusal or "")
            return self._database
        finally:
            self._reopening.release()

    def _open(self, deadline: Deadline) -> Database:
        if self._reads_only:
            self.is_read_only = True
            return Database(self.path, is_read_only=True)
        try:
            with opening(self.path, deadline.has_passed):
                database = self._open_or_rebuild()
                self._was_opened()
                return database
        except LedgerError as error:
            if error.code not in NO_ROOM and not _is_full(self.path):
                raise
            return self._open_copy(error)

    def _open_or_rebuild(self) -> Database:
        try:
            return self._open_checked()
        except LedgerError as error:
            if error.code != CORRUPT:
                raise
            self._move_aside(error)
            return self._open_checked()

    def _open_copy(self, cause: LedgerError) -> Database:
        """Read a copy of the ledger into memory, so that claims can be undone when a full disk prevents opening it."""
        copy = snapshot_of(self.path)
        try:
            version = int(copy.execute("PRAGMA user_version").fetchone()[0])
            if version // 1000 > MAJOR:
                raise cause
            if version == 0:
                create_tables(copy, self._recovered())
            elif version % 1000 < MINOR:
                add_tables(copy)
        except (LedgerError, sqlite3.Error) as exc:
            copy.close()
            raise cause from exc
        log.error("ledger can't be opened: claims can only be unprepared", extra=fields(err=str(cause)))
        return Database(self.path, copy=copy, refusal=cause)

    def _open_checked(self) -> Database:
        """Open the file, check its integrity and version, and make the tables of a new one."""
        database = Database(self.path)
        try:
            _check_integrity(database)
            version = int(database.read("PRAGMA user_version")[0][0])
            if version // 1000 > MAJOR:
                database.close()
                return self._open_read_only(version)
            if version == 0:
                self._create(database)
            elif version % 1000 < MINOR:
                database.write(add_tables)
            elif version % 1000 > MINOR:
                log.info("ledger of a newer minor version", extra=fields(version=version))
        except LedgerError:
            database.close()
            raise
        return database

    def _open_read_only(self, version: int) -> Database:
        self.is_read_only = True
        self.problem = (
            f"ledger {self.path} was written by a newer major version ({version // 1000}.{version % 1000}, this agent "
            f"knows {MAJOR}.{MINOR}): nothing is prepared, claims can only be unprepared"
        )
        log.error("ledger of a newer major version, opened read-only", extra=fields(version=version, err=self.problem))
        return Database(self.path, is_read_only=True)

    def _move_aside(self, error: LedgerError) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = self.path.with_name(f"{self.path.name}.corrupt-{stamp}")
        move_aside(self.path, aside)
        log.error("ledger corrupt, moved aside", extra=fields(file=str(aside), err=error.message))

    def _create(self, database: Database) -> None:
        """Make the tables, with records of the claims that are already on the node."""
        records = self._recovered()
        database.write(lambda connection: create_tables(connection, records))
        if records:
            log.error("ledger rebuilt from CDI files", extra=fields(file=str(self.path), count=len(records)))

    def _recovered(self) -> tuple[ClaimRecord, ...]:
        """Return records of the claims that are already on the node. Raises: LedgerError("ledger.cannot-open")."""
        try:
            return tuple(self._files.recover())
        except PrepareError as error:
            text = f"ledger {self.path} can't be rebuilt from CDI files: {error}"
            raise LedgerError("cannot-open", text, hint=error.hint, retry=Retry.LATER) from error


def _check_integrity(database: Database) -> None:
    if database.read("PRAGMA quick_check(1)")[0][0] != "ok":
        raise LedgerError("corrupt", f"ledger {database.path}: its integrity check fails")
    if database.read("PRAGMA user_version")[0][0] == 0 and database.read("SELECT name FROM sqlite_master"):
        raise LedgerError("corrupt", f"{database.path} is not a ledger")


def _is_full(path: Path) -> bool:
    try:
        free = os.statvfs(path.parent)
    except OSError:
        return False
    return free.f_bfree == 0 or (free.f_files > 0 and free.f_ffree == 0)
