"""Ledger: which claim holds which device on this node, durably; what Unprepare and repair work from.

An intent is recorded before the first effect, the commit after the last. How the file is opened, and begun again when
it is lost, stands in `ledger_file`; its schema in `ledger_rows`. On a full disk claims can be forgotten all the same:
they are noted in a list beside the ledger (`unprepared`), and nobody sees their rows any more.
Source: docs/decisions/0004.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from dra_driver.claims.allocated import AllocatedClaim
from dra_driver.model.errors import LedgerError
from dra_driver.model.wire import Wire
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.conflicts import Conflict, rivals_of, rivals_query, wanted_of
from dra_driver.plugin.ledger.database import BUSY_SECONDS, NO_ROOM, quoted
from dra_driver.plugin.ledger.device_effects import DeviceEffects
from dra_driver.plugin.ledger.kept_back import KeptBackDevices, kept_query, kept_rivals
from dra_driver.plugin.ledger.ledger_file import LedgerFile
from dra_driver.plugin.ledger.ledger_rows import delete, insert, records_of, remove, view_without
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimState, Record, json_text, record_of_row
from dra_driver.plugin.ledger.unprepared import Unprepared
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")


class Ledger:
    """The ledger at `path`; any number of threads and two agents may use it.

    `recover` gives records for claims whose effects are on the node when the ledger itself is lost; `has_file` tells
    whether a claim's CDI file is there. One that `reads_only` belongs to somebody who looks at another process's
    ledger.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        recover: Callable[[], Iterable[Record]] = tuple,
        has_file: Callable[[str], bool] = lambda _: False,
        reads_only: bool = False,
    ) -> None:
        self.path = Path(path)
        self._patience = threading.local()
        self._unprepared = Unprepared(self.path.with_name(f"{self.path.name}.unprepared"), has_file=has_file)
        self._file = LedgerFile(self.path, recover=recover, reads_only=reads_only, opened=self._unprepared.make)
        self._reads_only = reads_only
        self.effects = DeviceEffects(self._read, self._write)
        self.kept_back = KeptBackDevices(self._read, self._write)
        try:
            self._file.current(self._deadline())
        except LedgerError:
            log.exception("ledger can't be opened yet", extra=fields(file=str(self.path)))

    @property
    def is_read_only(self) -> bool:
        """Whether a newer major version wrote the ledger, or it is only to be looked at."""
        return self._file.is_read_only

    @property
    def problem(self) -> str:
        """Why the agent isn't ready, for people; "" when it is."""
        return self._file.problem

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._unprepared.close()

    @contextmanager
    def until(self, deadline: Deadline) -> Iterator[None]:
        """Let this thread wait until `deadline` where another process has the ledger locked, instead of 5 seconds."""
        before = getattr(self._patience, "deadline", None)
        self._patience.deadline = deadline
        try:
            yield
        finally:
            self._patience.deadline = before

    def require_writable(self) -> None:
        """Raise LedgerError("ledger.newer") when a newer major version wrote the ledger."""
        if self.is_read_only:
            raise LedgerError("newer", self.problem, hint="run the newer agent again, or drain the node first")

    # Reading

    def get(self, uid: str) -> Record | None:
        """Return one claim."""
        rows = self._read("SELECT * FROM claims WHERE uid = ?", (uid,))
        return record_of_row(rows[0]) if rows else None

    def records(self) -> tuple[Record, ...]:
        """Return every claim; for start-up and the reaper, never within a call."""
        return tuple(record_of_row(row) for row in self._read("SELECT * FROM claims ORDER BY uid"))

    def unfinished(self) -> tuple[str, ...]:
        """Return the UIDs of half-done claims."""
        marks = ", ".join("?" for _ in UNFINISHED)
        return tuple(r["uid"] for r in self._read(f"SELECT uid FROM claims WHERE state IN ({marks})", UNFINISHED))  # noqa: S608

    def count(self) -> int:
        """Count the claims."""
        return int(self._read("SELECT count(*) AS n FROM claims")[0]["n"])

    def rivals(self, claim: AllocatedClaim, occupied: Sequence[str] = (), *, boot_id: str) -> tuple[Conflict, ...]:
        """Return the claims that hold a device which this claim is to own, or what it occupies of one.

        So do claims of this boot whose containers may still run. Two shares of a device are no rivals.
        """
        wanted = wanted_of(claim, occupied)
        if not wanted:
            return ()
        rivals = rivals_of(self._read(*rivals_query(claim.uid, wanted)), wanted)
        return rivals + kept_rivals(self._read(*kept_query(boot_id)), claim.uid, wanted)

    def version(self) -> object:
        """Return what is another one after every change by anybody. Raises: LedgerError."""
        database = self._file.current(self._deadline())
        return database, database.version(), self._hidden()

    def held(self) -> frozenset[str]:
        """Name every device that a claim holds."""
        sql = "SELECT DISTINCT device FROM holds JOIN claims ON claims.uid = holds.claim_uid"
        return frozenset(row["device"] for row in self._read(sql))

    def is_occupied(self, gpu_name: str, *, other_than: str) -> bool:
        """Return whether a claim other than the one given occupies a part of a GPU, or all of it.

        Claims that are being undone don't count: of several the last one must find nobody.
        """
        sql = (
            "SELECT 1 FROM holds JOIN claims ON claims.uid = holds.claim_uid "
            "WHERE holds.device GLOB ? AND claims.uid <> ? AND claims.state <> ? LIMIT 1"
        )
        return bool(self._read(sql, (f"{gpu_name}/*", other_than, str(ClaimState.UNPREPARING))))

    def modes(self, boot_id: str) -> frozenset[str]:
        """Return the GPUs, by PCI address, on which we have switched MIG mode on in this boot."""
        if not self.is_read_only or self._reads_only:
            rows = self._read("SELECT gpu FROM mig_modes WHERE boot_id = ?", (boot_id,))
            return frozenset(row["gpu"] for row in rows)
        return frozenset()

    def is_empty(self) -> bool:
        """Return whether nothing would be lost with the file. Raises: LedgerError."""
        if self.is_read_only or self.count() or self.kept_back.has_any():
            return False
        return not self.effects.names() and not self._read("SELECT 1 FROM mig_modes LIMIT 1")

    # Writing

    def intend(
        self, record: Record, claim: AllocatedClaim, occupied: Sequence[str] = (), *, is_synced: bool = True
    ) -> tuple[Conflict, ...]:
        """Record the intent and take hold of the claim's devices; or give the rivals, and write nothing.

        An intent need not be synced where a power failure takes all its effects away.
        """
        wanted = wanted_of(claim, occupied)
        sql, values = rivals_query(claim.uid, wanted)

        def job(connection: sqlite3.Connection) -> tuple[Conflict, ...]:
            rivals = rivals_of(connection.execute(sql, values).fetchall(), wanted) if wanted else ()
            rivals += kept_rivals(connection.execute(*kept_query(record.boot_id)), claim.uid, wanted)
            if not rivals:
                insert(connection, record, wanted)
            return rivals

        return self._write(job, is_synced=is_synced)

    def set_state(self, uid: str, state: ClaimState, *, is_synced: bool = True) -> None:
        """Move a claim on."""
        self._execute("UPDATE claims SET state = ? WHERE uid = ?", (str(state), uid), is_synced=is_synced)

    def commit(self, uid: str, steps: Sequence[Wire]) -> None:
        """Note that all effects are done, and what the steps made."""
        sql = "UPDATE claims SET state = ?, steps = ? WHERE uid = ?"
        self._execute(sql, (str(ClaimState.PREPARED), json_text(steps), uid))

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
        """Note that we switch a GPU's MIG mode on in this boot; None: it is off again.

        The note counts in this boot alone, so that it need not outlive a power failure.
        """
        if boot_id is None:
            self._execute("DELETE FROM mig_modes WHERE gpu = ?", (gpu,), is_synced=False)
        else:
            sql = "INSERT OR REPLACE INTO mig_modes (gpu, boot_id) VALUES (?, ?)"
            self._execute(sql, (gpu, boot_id), is_synced=False)

    def set_boot(self, uid: str, boot_id: str) -> None:
        """Note that the claim's effects were made again in this boot."""
        self._execute("UPDATE claims SET boot_id = ? WHERE uid = ?", (boot_id, uid))

    def set_gone(self, uid: str, since: float | None, boot_id: str) -> None:
        """Note since when the claim has been missing in the API (seconds of boot time), None when it is there."""
        self._execute("UPDATE claims SET gone_since = ?, gone_boot = ? WHERE uid = ?", (since, boot_id, uid))

    def complete(self, record: Record, claim: AllocatedClaim, occupied: Sequence[str] = ()) -> None:
        """Replace a recovered record, and its holds, by what the API says of the claim."""

        def job(connection: sqlite3.Connection) -> None:
            delete(connection, record.uid)
            insert(connection, record, wanted_of(claim, occupied))

        self._write(job)

    def forget(self, record: Record, pods: Collection[str] = ()) -> None:
        """Remove a claim that was undone, and let go of its devices, but for what `pods` may still use.

        Where the disk has no room for that, the claim is noted as unprepared: the next write removes it.
        """
        try:
            self._write(lambda connection: remove(connection, record, pods))
        except LedgerError as error:
            if error.code not in NO_ROOM:
                raise
            log.warning(
                "no room to forget a claim that was undone", extra=fields(claim=record.full_name, err=str(error))
            )
            self._unprepared.add(record.uid)

    def settle(self) -> int:
        """Remove the claims that could not be forgotten when they were undone. Return their number.

        The list is shortened in a second transaction, whose lock keeps everybody from writing rows meanwhile: no claim
        that was prepared again can be taken for one that was undone. Pods of these claims count as alive: whoever
        watches over what is kept back looks. Raises: LedgerError, the list is then what it was.
        """
        if self.is_read_only or not (count := len(self._hidden())):
            return 0

        def remove_rows(connection: sqlite3.Connection) -> None:
            for record in records_of(connection, self._hidden()):
                remove(connection, record, tuple(map(str, record.allocation.get("pods") or ())))

        def shorten(connection: sqlite3.Connection) -> None:
            uids = self._hidden()
            self._unprepared.remove(uids.difference(record.uid for record in records_of(connection, uids)))

        self._use(remove_rows)
        self._use(shorten)
        log.info("claims that were undone on a full disk are forgotten", extra=fields(count=count))
        return count

    # Below: reads that leave out what was undone, writes that first make good for it

    def _read(self, sql: str, values: Iterable[object] = ()) -> list[sqlite3.Row]:
        view = view_without(self._hidden())
        deadline = self._deadline()
        return self._file.use(
            lambda database: database.read(sql, tuple(values), deadline=deadline, view=view), deadline
        )

    def _execute(self, sql: str, values: tuple[object, ...], *, is_synced: bool = True) -> None:
        self._write(lambda connection: connection.execute(sql, values), is_synced=is_synced)

    def _write(self, job: Callable[[sqlite3.Connection], T], *, is_synced: bool = True) -> T:
        self.require_writable()
        if self._hidden():
            self.settle()
        return self._use(job, is_synced=is_synced)

    def _use(self, job: Callable[[sqlite3.Connection], T], *, is_synced: bool = True) -> T:
        deadline = self._deadline()
        return self._file.use(lambda database: database.write(job, deadline=deadline, is_synced=is_synced), deadline)

    def _hidden(self) -> frozenset[str]:
        try:
            return self._unprepared.uids()
        except OSError as exc:
            raise LedgerError("input-output", f"list of unprepared claims beside {self.path}: {exc}") from exc

    def _deadline(self) -> Deadline:
        return getattr(self._patience, "deadline", None) or Deadline.after(BUSY_SECONDS)


@contextmanager
def as_far_as_there_is_room(what: str) -> Iterator[None]:
    """Let a write that undoing needs only for its tidiness fail on a full disk: what is left is tidied up later."""
    try:
        yield
    except LedgerError as error:
        if error.code not in NO_ROOM:
            raise
        log.warning("no room in the ledger, undoing goes on", extra=fields(reason=what, err=str(error)))


def has_claims(path: str | Path) -> bool:
    """Return whether the ledger at `path` may hold claims; one that can't be read may."""
    if not Path(path).exists():
        return False
    try:
        with closing(sqlite3.connect(f"file:{quoted(Path(path))}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT 1 FROM claims LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True
