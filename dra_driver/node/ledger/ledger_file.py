"""Ledger file: opens the ledger's database, checks and upgrades it, and opens it again if it breaks or is removed.

In: the path. Out: an open Database of a known version, or a copy in memory if a full disk prevents opening it. A
corrupt file is moved aside, and a corrupt or missing one is rebuilt from the claims' CDI files. A file of a newer major
version is opened read-only.
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

from dra_driver.base.errors import LedgerError, PrepareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.names import gpu_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import Wire
from dra_driver.node.ledger import device_effects, spans, unreleased
from dra_driver.node.ledger import spans as claim_totals
from dra_driver.node.ledger import spans as usage_clock
from dra_driver.node.ledger.database import (
    BUSY,
    BUSY_PAUSES,
    CORRUPT,
    NO_ROOM,
    Database,
    ledger_error,
    move_aside,
    opening,
    quoted,
)
from dra_driver.node.ledger.record import ClaimFiles, ClaimRecord, ClaimState, record_of_row, row_of_record
from dra_driver.node.ledger.recorded_steps import RecordedPartition, RecordedSharing
from dra_driver.node.ledger.spans import add_columns
from dra_driver.node.ledger.unreleased import wanted_of

# Ledger rows: the schema of the ledger, and the SQL that writes and removes claims in it.

MAJOR, MINOR = 1, 5
LATER_TABLES = (  # that version 1.0 of the ledger did not have
    "CREATE TABLE IF NOT EXISTS mig_modes (gpu TEXT PRIMARY KEY, boot_id TEXT NOT NULL) WITHOUT ROWID",
    *device_effects.SCHEMA,
    *unreleased.SCHEMA,
    *spans.SPANS_SCHEMA,
    *usage_clock.USAGE_CLOCK_SCHEMA,
    *claim_totals.SCHEMA,
)
SCHEMA = (
    """CREATE TABLE claims (
        uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, boot_id TEXT NOT NULL,
        allocation TEXT NOT NULL, steps TEXT NOT NULL, gone_since REAL, gone_boot TEXT NOT NULL DEFAULT '')
        WITHOUT ROWID""",
    """CREATE TABLE holds (
        device TEXT NOT NULL, claim_uid TEXT NOT NULL, share_id TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (device, claim_uid, share_id)) WITHOUT ROWID""",
    "CREATE INDEX holds_of_claim ON holds (claim_uid)",
    *LATER_TABLES,
    f"PRAGMA user_version={MAJOR * 1000 + MINOR}",
)


class ModeEnd(Enum):
    """Whether a claim that is undone may end a GPU's MIG mode, and whether other claims are undone beside it."""

    NOT_YET = auto()
    ALONE = auto()
    BESIDE_OTHERS = auto()


def create_tables(connection: sqlite3.Connection, records: Iterable[ClaimRecord]) -> None:
    """Make the tables, with rows for claims that are already on the node."""
    for line in SCHEMA:
        connection.execute(line)
    add_columns(connection)
    for record in records:
        insert(connection, row_of_record(record), wanted_of(record.claim(), ()))
        effects = (step.effect for step in record.steps_of(RecordedSharing) if step.effect is not None)
        device_effects.insert_recovered(connection, record.uid, effects)


def add_tables(connection: sqlite3.Connection) -> None:
    """Add the tables and columns that this version has and the file's older minor version lacks."""
    for line in (*LATER_TABLES, f"PRAGMA user_version={MAJOR * 1000 + MINOR}"):
        connection.execute(line)
    add_columns(connection)


def insert(connection: sqlite3.Connection, row: Wire, holds: tuple[tuple[str, str], ...]) -> None:
    """Write a claim's row (`row_of_record`) and its holds."""
    connection.execute(_insert_sql(tuple(row)), row)
    connection.executemany(
        "INSERT OR IGNORE INTO holds (device, claim_uid, share_id) VALUES (?, ?, ?)",
        [(device, row["uid"], share_id) for device, share_id in holds],
    )


@functools.lru_cache(maxsize=4)
def _insert_sql(columns: tuple[str, ...]) -> str:
    return f"INSERT INTO claims ({', '.join(columns)}) VALUES ({', '.join(f':{column}' for column in columns)})"  # noqa: S608


def record_mode_changes(connection: sqlite3.Connection, record: ClaimRecord) -> None:
    """Record that this driver switches MIG mode on for the partitions of an intent that need it."""
    for step in record.steps:
        if isinstance(step, RecordedPartition) and step.switches_mode and step.gpu is not None:
            sql = "INSERT OR REPLACE INTO mig_modes (gpu, boot_id) VALUES (?, ?)"
            connection.execute(sql, (step.gpu.pci_address, record.boot_id))


def remove_mode_records(connection: sqlite3.Connection, gpus: Iterable[str]) -> None:
    """Remove the records of MIG modes that this driver has switched off again.

    The record stays if a claim occupies a part of the GPU by now, because that claim may have switched the mode on.
    """
    sql = "DELETE FROM mig_modes WHERE gpu = ? AND NOT EXISTS (SELECT 1 FROM holds WHERE device BETWEEN ? AND ?)"
    for gpu in gpus:
        connection.execute(sql, (gpu, *parts_of(gpu)))


def remove_ended_mode_record(connection: sqlite3.Connection, gpu: str, uid: str) -> None:
    """Remove the record of a GPU's MIG mode, unless a claim that is not being undone occupies a part of the GPU.

    The claim `uid` has just been undone and does not count.
    """
    sql = (
        "DELETE FROM mig_modes WHERE gpu = ? AND NOT EXISTS (SELECT 1 FROM holds "
        "JOIN claims ON claims.uid = holds.claim_uid "
        "WHERE holds.device BETWEEN ? AND ? AND claims.uid <> ? AND claims.state <> ?)"
    )
    connection.execute(sql, (gpu, *parts_of(gpu), uid, str(ClaimState.UNPREPARING)))


def parts_of(gpu: str) -> tuple[str, str]:
    """Return the bounds between which the names of all parts of a GPU lie; `gpu` is its PCI address.

    With a pattern (GLOB) instead, SQLite would compile the query each time, which takes ten times as long as to run it.
    """
    name = gpu_name(gpu)
    return f"{name}/", f"{name}/~"


def delete(connection: sqlite3.Connection, uid: str) -> None:
    """Remove a claim and its holds."""
    connection.execute("DELETE FROM holds WHERE claim_uid = ?", (uid,))
    connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))


def remove(
    connection: sqlite3.Connection,
    record: ClaimRecord,
    pods: Collection[str],
    boot_id: str,
    nodes: Collection[int] = (),
) -> None:
    """Remove a claim, and record what its `pods`, or others with its `nodes`, may still use in this boot as unreleased.

    A claim whose preparation was never completed has no containers, and those of an earlier boot are gone: their
    devices are released at once. A recovered claim does not know its boot and counts as one of this boot.
    """
    if record.state != ClaimState.PREPARING and record.boot_id in {"", boot_id}:
        unreleased.keep_unreleased(connection, record, pods, boot_id, nodes)
    unreleased.forget_noted(connection, record.uid)
    spans.end(connection, record, boot_id)
    delete(connection, record.uid)


def records_of(connection: sqlite3.Connection, uids: Iterable[str]) -> tuple[ClaimRecord, ...]:
    """Return the records of those claims that have a row."""
    sql = "SELECT * FROM claims WHERE uid = ?"
    return tuple(record_of_row(row) for uid in uids for row in connection.execute(sql, (uid,)).fetchall())


def view_without(uids: frozenset[str]) -> str:
    """Return the query for all claims except these, or "" if none is excluded. UIDs contain no quotes."""
    if not uids:
        return ""
    names = ", ".join(f"'{uid}'" for uid in sorted(uids))
    return f"SELECT * FROM main.claims WHERE uid NOT IN ({names})"  # noqa: S608


# Snapshot: a copy of an SQLite file in memory, for a disk so full that the file itself can't be opened for use.

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
