"""Ledger: which claim holds which device on this node, durably; what Unprepare and repair work from.

An intent is recorded before the first effect, the commit after the last. `user_version` is major * 1000 + minor of the
schema. Within a major the schema only grows (new columns have defaults), so that an older agent can work on it; a newer
major is opened read-only. A corrupt or vanished file is moved aside and begun again from what `recover` finds.
Source: docs/decisions/0004.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dra_driver.claims.allocated import AllocatedClaim
from dra_driver.model.errors import LedgerError
from dra_driver.model.wire import Wire
from dra_driver.plugin import device_effects
from dra_driver.plugin.database import CORRUPT, Database, fault, quoted
from dra_driver.plugin.record import UNFINISHED, Record, State, json_text, record_of_row, row_of_record
from dra_driver.plugin.rivals import Rival, rivals_of, rivals_query, wanted_of
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")

MAJOR, MINOR = 1, 2
_GROWN = (  # since 1.1
    "CREATE TABLE IF NOT EXISTS mig_modes (gpu TEXT PRIMARY KEY, boot_id TEXT NOT NULL) WITHOUT ROWID",
    *device_effects.SCHEMA,
)
_SCHEMA = (
    """CREATE TABLE claims (
        uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, boot_id TEXT NOT NULL,
        allocation TEXT NOT NULL, steps TEXT NOT NULL, gone_since REAL, gone_boot TEXT NOT NULL DEFAULT '')
        WITHOUT ROWID""",
    """CREATE TABLE holds (
        device TEXT NOT NULL, claim_uid TEXT NOT NULL, share_id TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (device, claim_uid, share_id)) WITHOUT ROWID""",
    "CREATE INDEX holds_of_claim ON holds (claim_uid)",
    *_GROWN,
    f"PRAGMA user_version={MAJOR * 1000 + MINOR}",
)
_FILES = ("", "-wal", "-shm")


class Ledger:
    """The ledger at `path`; any number of threads and two agents may use it.

    `recover` gives records for claims whose effects are on the node when the ledger itself is lost. One that
    `reads_only` belongs to somebody who looks at another process's ledger.
    """

    def __init__(
        self, path: str | Path, *, recover: Callable[[], Iterable[Record]] = tuple, reads_only: bool = False
    ) -> None:
        self.path = Path(path)
        self._recover, self._reads_only = recover, reads_only
        self._reopening = threading.Lock()
        self._database: Database | None = None
        self.effects = device_effects.DeviceEffects(self._read, self._write)
        self.is_read_only = False
        self.problem = ""  # why the agent isn't ready, for people
        try:
            self._current()
        except LedgerError:
            log.exception("ledger can't be opened yet", extra=fields(file=str(self.path)))

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def require_writable(self) -> None:
        """Raise LedgerError("ledger.newer") when a newer major version wrote the ledger."""
        if self.is_read_only:
            raise LedgerError("newer", self.problem, hint="run the newer agent again, or drain the node first")

    # Reading

    def get(self, uid: str) -> Record | None:
        """Give one claim."""
        rows = self._read("SELECT * FROM claims WHERE uid = ?", (uid,))
        return record_of_row(rows[0]) if rows else None

    def records(self) -> tuple[Record, ...]:
        """Give every claim; for start-up and the reaper, never within a call."""
        return tuple(record_of_row(row) for row in self._read("SELECT * FROM claims ORDER BY uid"))

    def unfinished(self) -> tuple[str, ...]:
        """Give the UIDs of half-done claims."""
        marks = ", ".join("?" for _ in UNFINISHED)
        return tuple(r["uid"] for r in self._read(f"SELECT uid FROM claims WHERE state IN ({marks})", UNFINISHED))  # noqa: S608

    def count(self) -> int:
        """Count the claims."""
        return int(self._read("SELECT count(*) AS n FROM claims")[0]["n"])

    def rivals(self, claim: AllocatedClaim, occupied: Sequence[str] = ()) -> tuple[Rival, ...]:
        """Give the claims that hold a device which this claim is to own, or what it occupies of one.

        Two shares of a device are no rivals.
        """
        wanted = wanted_of(claim, occupied)
        if not wanted:
            return ()
        sql, values = rivals_query(claim.uid, wanted)
        return rivals_of(self._read(sql, values), wanted)

    def held(self) -> frozenset[str]:
        """Name every device that a claim holds."""
        return frozenset(row["device"] for row in self._read("SELECT DISTINCT device FROM holds"))

    def is_occupied(self, gpu_name: str, *, other_than: str) -> bool:
        """Say whether a claim other than the one given occupies a part of a GPU, or all of it.

        Claims that are being undone don't count: of several the last one must find nobody.
        """
        sql = (
            "SELECT 1 FROM holds JOIN claims ON claims.uid = holds.claim_uid "
            "WHERE holds.device GLOB ? AND claims.uid <> ? AND claims.state <> ? LIMIT 1"
        )
        return bool(self._read(sql, (f"{gpu_name}/*", other_than, str(State.UNPREPARING))))

    def modes(self, boot_id: str) -> frozenset[str]:
        """Give the GPUs, by PCI address, on which we have switched MIG mode on in this boot."""
        if not self.is_read_only or self._reads_only:
            rows = self._read("SELECT gpu FROM mig_modes WHERE boot_id = ?", (boot_id,))
            return frozenset(row["gpu"] for row in rows)
        return frozenset()

    def is_empty(self) -> bool:
        """Say whether nothing would be lost with the file. Raises: LedgerError."""
        if self.is_read_only or self.count():
            return False
        return not self.effects.names() and not self._read("SELECT 1 FROM mig_modes LIMIT 1")

    # Writing

    def intend(
        self, record: Record, claim: AllocatedClaim, occupied: Sequence[str] = (), *, is_synced: bool = True
    ) -> tuple[Rival, ...]:
        """Record the intent and take hold of the claim's devices; or give the rivals, and write nothing.

        An intent need not be synced where a power failure takes all its effects away.
        """
        wanted = wanted_of(claim, occupied)
        sql, values = rivals_query(claim.uid, wanted)

        def job(connection: sqlite3.Connection) -> tuple[Rival, ...]:
            rivals = rivals_of(connection.execute(sql, values).fetchall(), wanted) if wanted else ()
            if not rivals:
                _insert(connection, record, wanted)
            return rivals

        return self._write(job, is_synced=is_synced)

    def set_state(self, uid: str, state: State) -> None:
        """Move a claim on."""
        self._execute("UPDATE claims SET state = ? WHERE uid = ?", (str(state), uid))

    def commit(self, uid: str, steps: Sequence[Wire]) -> None:
        """Note that all effects are done, and what the steps made."""
        sql = "UPDATE claims SET state = ?, steps = ? WHERE uid = ?"
        self._execute(sql, (str(State.PREPARED), json_text(steps), uid))

    def hold(self, uid: str, occupied: Sequence[str]) -> None:
        """See to it that a claim holds what it occupies: an agent that offered its GPU otherwise recorded less."""
        if not occupied:
            return
        known = {row["device"] for row in self._read("SELECT device FROM holds WHERE claim_uid = ?", (uid,))}
        if missing := [(name, uid) for name in occupied if name not in known]:
            sql = "INSERT OR IGNORE INTO holds (device, claim_uid) VALUES (?, ?)"
            self._write(lambda connection: connection.executemany(sql, missing))

    def set_steps(self, uid: str, steps: Sequence[Wire]) -> None:
        """Note what the steps found or made."""
        self._execute("UPDATE claims SET steps = ? WHERE uid = ?", (json_text(steps), uid))

    def set_allocation(self, uid: str, allocation: Wire) -> None:
        """Note more of what the API says of a claim."""
        self._execute("UPDATE claims SET allocation = ? WHERE uid = ?", (json_text(allocation), uid))

    def set_mode(self, gpu: str, boot_id: str | None) -> None:
        """Note that we switch a GPU's MIG mode on in this boot; None: it is off again."""
        if boot_id is None:
            self._execute("DELETE FROM mig_modes WHERE gpu = ?", (gpu,))
        else:
            self._execute("INSERT OR REPLACE INTO mig_modes (gpu, boot_id) VALUES (?, ?)", (gpu, boot_id))

    def set_boot(self, uid: str, boot_id: str) -> None:
        """Note that the claim's effects were made again in this boot."""
        self._execute("UPDATE claims SET boot_id = ? WHERE uid = ?", (boot_id, uid))

    def set_gone(self, uid: str, since: float | None, boot_id: str) -> None:
        """Note since when the claim has been missing in the API (seconds of boot time), None when it is there."""
        self._execute("UPDATE claims SET gone_since = ?, gone_boot = ? WHERE uid = ?", (since, boot_id, uid))

    def complete(self, record: Record, claim: AllocatedClaim, occupied: Sequence[str] = ()) -> None:
        """Replace a recovered record, and its holds, by what the API says of the claim."""

        def job(connection: sqlite3.Connection) -> None:
            _delete(connection, record.uid)
            _insert(connection, record, wanted_of(claim, occupied))

        self._write(job)

    def forget(self, uid: str) -> None:
        """Remove a claim and let go of its devices."""
        self._write(lambda connection: _delete(connection, uid))

    # Opening, and opening again

    def _read(self, sql: str, values: Iterable[object] = ()) -> list[sqlite3.Row]:
        return self._with_database(lambda database: database.read(sql, tuple(values)))

    def _execute(self, sql: str, values: tuple[object, ...]) -> None:
        self._write(lambda connection: connection.execute(sql, values))

    def _write(self, job: Callable[[sqlite3.Connection], T], *, is_synced: bool = True) -> T:
        self.require_writable()
        return self._with_database(lambda database: database.write(job, is_synced=is_synced))

    def _with_database(self, use: Callable[[Database], T]) -> T:
        """Use the open file; when it turns out broken, or is no longer the one at `path`, open it again first."""
        database = self._current()
        try:
            return use(database)
        except LedgerError as error:
            if error.code != CORRUPT or self.is_read_only:
                raise
        with self._reopening:
            if self._database is database:
                database.close()
                self._database = None
        return use(self._current())

    def _current(self) -> Database:
        database = self._database
        if database is not None and database.is_current():
            return database
        with self._reopening:
            if self._database is None or not self._database.is_current():
                try:
                    self._database = self._open()
                except LedgerError as error:
                    self.problem = str(error)
                    raise
                if not self.is_read_only:
                    self.problem = ""
            return self._database

    def _open(self) -> Database:
        if self._reads_only:
            self.is_read_only = True
            return Database(self.path, is_read_only=True)
        with _opening(self.path):
            try:
                return self._checked()
            except LedgerError as error:
                if error.code != CORRUPT:
                    raise
                self._move_aside(error)
                return self._checked()

    def _checked(self) -> Database:
        """Open, check the file's integrity and version, make the tables of a new one."""
        database = Database(self.path)
        try:
            _check_integrity(database)
            version = int(database.read("PRAGMA user_version")[0][0])
            if version // 1000 > MAJOR:
                database.close()
                return self._open_read_only(version)
            if version == 0:
                self._begin(database)
            elif version % 1000 < MINOR:
                database.write(_grow)
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
        for suffix in _FILES:
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
        log.error("ledger corrupt, moved aside", extra=fields(file=str(aside), err=error.message))

    def _begin(self, database: Database) -> None:
        """Make the tables, and records of what is on the node already."""
        records = tuple(self._recover())

        def job(connection: sqlite3.Connection) -> None:
            for line in _SCHEMA:
                connection.execute(line)
            for record in records:
                _insert(connection, record, wanted_of(record.claim(), ()))
                device_effects.insert_recovered(connection, record.uid, record.steps)

        database.write(job)
        if records:
            log.error("ledger begun again from CDI files", extra=fields(file=str(self.path), count=len(records)))


def has_claims(path: str | Path) -> bool:
    """Say whether the ledger at `path` may hold claims; one that can't be read may."""
    if not Path(path).exists():
        return False
    try:
        with closing(sqlite3.connect(f"file:{quoted(Path(path))}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT 1 FROM claims LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True


def _check_integrity(database: Database) -> None:
    if database.read("PRAGMA quick_check(1)")[0][0] != "ok":
        raise LedgerError("corrupt", f"ledger {database.path}: its integrity check fails")
    if database.read("PRAGMA user_version")[0][0] == 0 and database.read("SELECT name FROM sqlite_master"):
        raise LedgerError("corrupt", f"{database.path} is not a ledger")


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Keep two agents from making, or moving aside, the same ledger at once."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with path.with_name(path.name + ".open").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as exc:
        raise LedgerError("cannot-open", f"ledger {path} can't be opened: {exc}") from exc
    except sqlite3.Error as exc:
        raise fault(exc, path) from exc


def _grow(connection: sqlite3.Connection) -> None:
    """Add what this minor version has more."""
    for line in (*_GROWN, f"PRAGMA user_version={MAJOR * 1000 + MINOR}"):
        connection.execute(line)


def _insert(connection: sqlite3.Connection, record: Record, holds: tuple[tuple[str, str], ...]) -> None:
    row = row_of_record(record)
    columns, marks = ", ".join(row), ", ".join(f":{column}" for column in row)
    connection.execute(f"INSERT INTO claims ({columns}) VALUES ({marks})", row)  # noqa: S608
    connection.executemany(
        "INSERT OR IGNORE INTO holds (device, claim_uid, share_id) VALUES (?, ?, ?)",
        [(device, record.uid, share_id) for device, share_id in holds],
    )


def _delete(connection: sqlite3.Connection, uid: str) -> None:
    connection.execute("DELETE FROM holds WHERE claim_uid = ?", (uid,))
    connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))
