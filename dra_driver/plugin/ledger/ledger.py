"""Ledger: which claim holds which device on this node, durably. Unprepare and repair work from it.

An intent is recorded before the first effect, and the commit after the last. `ledger_file` opens the file and begins it
again when it is lost; `ledger_rows` has its schema. On a full disk, claims can still be forgotten: they are listed
in a file beside the ledger (`unprepared`), and their rows are hidden from every reader.
Source: docs/decisions/0004.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dra_driver.claims.allocated import AllocatedClaim
from dra_driver.model.errors import LedgerError
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.records import json_text
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger import spans
from dra_driver.plugin.ledger.access import LedgerAccess
from dra_driver.plugin.ledger.claim_files import ClaimFiles, NoClaimFiles
from dra_driver.plugin.ledger.conflicts import Conflict, Hold, conflicts_of, conflicts_query, replica_bounds, wanted_of
from dra_driver.plugin.ledger.connections import NO_ROOM
from dra_driver.plugin.ledger.device_effects import DeviceEffects
from dra_driver.plugin.ledger.kept_back import KeptBackDevices, kept_back_conflicts, kept_query
from dra_driver.plugin.ledger.ledger_rows import (
    ModeEnd,
    delete,
    disown_ended_mode,
    disown_modes,
    insert,
    own_modes,
    parts_of,
    remove,
)
from dra_driver.plugin.ledger.record import (
    NEVER_GONE,
    UNFINISHED,
    ClaimRecord,
    ClaimState,
    record_of_row,
    row_of_record,
    steps_text,
)
from dra_driver.plugin.ledger.recorded_steps import RecordedStep
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

MOST_KEPT = 64  # claims of a node with 8 GPUs cut in seven each
_WITH_HOLDS = (  # in one query, because a repeated Prepare needs both; no name has a space
    "SELECT *, (SELECT group_concat(device, ' ') FROM holds WHERE claim_uid = claims.uid) AS held "
    "FROM claims WHERE uid = ?"
)


class Ledger(LedgerAccess):
    """The ledger at `path`; any number of threads and two agents may use it. `boot_id` is the boot of this process.

    From `files` it begins again when the ledger itself is lost. With `reads_only` another process's ledger is inspected
    and never written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        boot_id: str = "",
        files: ClaimFiles | None = None,
        reads_only: bool = False,
    ) -> None:
        super().__init__(Path(path), boot_id=boot_id, files=files or NoClaimFiles(), reads_only=reads_only)
        self.effects = DeviceEffects(self._read, self._write)
        self.kept_back = KeptBackDevices(self._read, self._write)
        self.spans = spans.ClaimSpans(self._read, self._write)
        self._kept: FifoCache[str, tuple[Wire, ClaimRecord]] = FifoCache(
            MOST_KEPT
        )  # rows that need not be parsed again
        self.keeps_spans = False  # whether the times at which claims are prepared and unprepared are recorded
        self.open()

    # Reading

    def get(self, uid: str) -> ClaimRecord | None:
        """Return one claim, None when the ledger does not know it. Raises: LedgerError."""
        return self.get_with_holds(uid)[0]

    def get_with_holds(self, uid: str) -> tuple[ClaimRecord | None, frozenset[str]]:
        """Return one claim (`get`) and the names of what it holds, devices and parts of GPUs. Raises: LedgerError."""
        rows = self._read(_WITH_HOLDS, (uid,))
        if not rows:
            return None, frozenset()
        row = dict(rows[0])
        held = frozenset((row.pop("held") or "").split())
        kept = self._kept.get(uid)
        if kept is not None and kept[0] == row:
            return kept[1], held
        record = record_of_row(rows[0])
        self._kept.keep(uid, (row, record))
        return record, held

    def has_met(self, uid: str) -> bool:
        """Return whether this process has read or written a claim lately; nothing is read for that."""
        return self._kept.get(uid) is not None

    def records(self) -> tuple[ClaimRecord, ...]:
        """Return every claim. For start-up and the reaper, never within a call. Raises: LedgerError."""
        return tuple(record_of_row(row) for row in self._read("SELECT * FROM claims ORDER BY uid"))

    def with_step(self, kind: type[RecordedStep]) -> tuple[ClaimRecord, ...]:
        """Return the claims that recorded a step of a type; reads all rows, and no other claim's JSON."""
        rows = self._read("SELECT * FROM claims WHERE instr(steps, ?) ORDER BY uid", (json_text(kind.kind),))
        return tuple(record for record in map(record_of_row, rows) if record.steps_of(kind))

    def with_step_on(self, kind: type[RecordedStep], device: str) -> tuple[ClaimRecord, ...]:
        """Return the claims that hold a device, or a replica of it, and recorded a step of a type; by an index."""
        sql = (
            "SELECT * FROM claims WHERE uid IN "
            "(SELECT claim_uid FROM holds WHERE device = ? OR device BETWEEN ? AND ?) ORDER BY uid"
        )
        rows = self._read(sql, (device, *replica_bounds(device)))
        return tuple(record for record in map(record_of_row, rows) if record.steps_of(kind))

    def with_device(self, devices: Collection[str]) -> tuple[ClaimRecord, ...]:
        """Return the claims that have one of these devices, for administration too; reads no other claim's JSON.

        Raises: LedgerError.
        """
        if not devices:
            return ()
        wanted = ", ".join(["(?)"] * len(devices))
        sql = (
            "SELECT * FROM claims WHERE EXISTS "  # noqa: S608
            f"(SELECT 1 FROM (VALUES {wanted}) AS wanted WHERE instr(allocation, wanted.column1)) ORDER BY uid"
        )
        rows = self._read(sql, (json_text(device) for device in devices))
        return tuple(record for record in map(record_of_row, rows) if record.device_names().intersection(devices))

    def names(self) -> frozenset[tuple[str, str]]:
        """Return namespace and name of the claims whose name is known; reads no claim's JSON."""
        rows = self._read("SELECT namespace, name FROM claims WHERE name <> ''")
        return frozenset((row["namespace"], row["name"]) for row in rows)

    def unfinished(self) -> tuple[str, ...]:
        """Return the UIDs of half-done claims. Raises: LedgerError."""
        marks = ", ".join("?" for _ in UNFINISHED)
        return tuple(r["uid"] for r in self._read(f"SELECT uid FROM claims WHERE state IN ({marks})", UNFINISHED))  # noqa: S608

    def count(self) -> int:
        """Return the number of claims. Raises: LedgerError."""
        return int(self._read("SELECT count(*) AS n FROM claims")[0]["n"])

    def conflicts(self, claim: AllocatedClaim, occupied: Sequence[str] = (), *, boot_id: str) -> tuple[Conflict, ...]:
        """Return the claims that hold a device which this claim is to own, or a part that it occupies.

        Claims of this boot that were unprepared while their containers may still run count as well. Two shares of a
        device don't conflict. Raises: LedgerError.
        """
        wanted = wanted_of(claim, occupied)
        if not wanted:
            return ()
        conflicts = conflicts_of(self._read(*conflicts_query(claim.uid, wanted)), wanted)
        return conflicts + kept_back_conflicts(self._read(*kept_query(boot_id)), claim.uid, wanted)

    def holds(self) -> tuple[Hold, ...]:
        """Return what claims hold, devices and parts of GPUs; reads no claim's JSON. Raises: LedgerError."""
        sql = "SELECT holds.device, holds.share_id, claims.namespace FROM holds JOIN claims ON claims.uid = claim_uid"
        return tuple(Hold(row["device"], row["share_id"], row["namespace"]) for row in self._read(sql))

    def held(self) -> frozenset[str]:
        """Return the name of every device, and of every part of a GPU, that a claim holds. Raises: LedgerError."""
        sql = "SELECT DISTINCT device FROM holds JOIN claims ON claims.uid = holds.claim_uid"
        return frozenset(row["device"] for row in self._read(sql))

    def mode_end(self, gpu: str, boot_id: str, *, other_than: str) -> ModeEnd:
        """Return whether MIG mode of a GPU, by PCI address, may end: it is this driver's, and no other claim needs it.

        A claim needs it that occupies a part of the GPU, or all of it, unless it is the one given or is being undone:
        the last of several finds the GPU unoccupied.
        """
        if self.is_read_only and not self._reads_only:
            return ModeEnd.NOT_YET
        sql = (
            "SELECT EXISTS (SELECT 1 FROM holds WHERE device BETWEEN ? AND ? AND claim_uid <> ?) AS is_shared "
            "FROM mig_modes WHERE gpu = ? AND boot_id = ? AND NOT EXISTS ("
            "SELECT 1 FROM holds JOIN claims ON claims.uid = holds.claim_uid "
            "WHERE holds.device BETWEEN ? AND ? AND claims.uid <> ? AND claims.state <> ?)"
        )
        parts = parts_of(gpu)
        rows = self._read(sql, (*parts, other_than, gpu, boot_id, *parts, other_than, str(ClaimState.UNPREPARING)))
        if not rows:
            return ModeEnd.NOT_YET
        return ModeEnd.BESIDE_OTHERS if rows[0]["is_shared"] else ModeEnd.ALONE

    def modes(self, boot_id: str) -> frozenset[str]:
        """Return the GPUs, by PCI address, on which this driver has switched MIG mode on in this boot."""
        if not self.is_read_only or self._reads_only:
            rows = self._read("SELECT gpu FROM mig_modes WHERE boot_id = ?", (boot_id,))
            return frozenset(row["gpu"] for row in rows)
        return frozenset()

    def is_empty(self) -> bool:
        """Return whether removing the file would lose nothing. Raises: LedgerError."""
        if self.is_read_only or self.count() or self.kept_back.has_any():
            return False
        return not self.effects.names() and not self._read("SELECT 1 FROM mig_modes LIMIT 1")

    # Writing

    def intend(
        self, record: ClaimRecord, claim: AllocatedClaim, occupied: Sequence[str] = (), *, is_synced: bool = True
    ) -> tuple[Conflict, ...]:
        """Record the intent with the claim's holds; if other claims hold a device, return those and write nothing.

        With it goes on record that this driver switches on the MIG modes that the intent's partitions need.

        With `is_synced` false the write may be lost in a power failure, which is right where a power failure removes
        all effects of the intent too. Raises: LedgerError.
        """
        return self._write(self._intent(record, claim, occupied), is_synced=is_synced)

    def intend_anew(self, record: ClaimRecord, claim: AllocatedClaim, occupied: Sequence[str] = ()) -> bool:
        """Record the intent of a claim that the ledger does not know, without a look for it beforehand.

        Return False, with nothing written, if the ledger knows the claim or other claims hold a device.
        Raises: LedgerError.
        """
        intent = self._intent(record, claim, occupied)

        def unless_known(connection: sqlite3.Connection) -> bool:
            try:
                return not intent(connection)
            except sqlite3.IntegrityError:  # there is a row of this claim
                return False

        return self._write(unless_known)

    def _intent(
        self, record: ClaimRecord, claim: AllocatedClaim, occupied: Sequence[str]
    ) -> Callable[[sqlite3.Connection], tuple[Conflict, ...]]:
        wanted = wanted_of(claim, occupied)
        sql, values = conflicts_query(claim.uid, wanted)
        row = row_of_record(record)
        self._kept.keep(record.uid, ({**row, **NEVER_GONE}, record))

        def job(connection: sqlite3.Connection) -> tuple[Conflict, ...]:
            conflicts = conflicts_of(connection.execute(sql, values).fetchall(), wanted) if wanted else ()
            conflicts += kept_back_conflicts(
                connection.execute(*kept_query(record.boot_id)).fetchall(), claim.uid, wanted
            )
            if not conflicts:
                insert(connection, row, wanted)
                own_modes(connection, record)
                if self.keeps_spans:
                    spans.begin(connection, record)
            return conflicts

        return job

    def set_state(self, uid: str, state: ClaimState, *, is_synced: bool = True) -> None:
        """Set the state of a claim. Raises: LedgerError."""
        self._execute("UPDATE claims SET state = ? WHERE uid = ?", (str(state), uid), is_synced=is_synced)

    def commit(self, uid: str, steps: Sequence[RecordedStep] | None = None) -> None:
        """Record that all effects are done, and what the steps made unless that is recorded. Raises: LedgerError."""
        if steps is None:
            self.set_state(uid, ClaimState.PREPARED)
            return
        state, text, kept = str(ClaimState.PREPARED), steps_text(steps), self._kept.get(uid)
        if kept is not None:  # the next call need not parse what this one knows
            row = {**kept[0], "state": state, "steps": text}
            self._kept.keep(uid, (row, kept[1].as_prepared(tuple(steps))))
        self._execute("UPDATE claims SET state = ?, steps = ? WHERE uid = ?", (state, text, uid))

    def hold(self, uid: str, occupied: Sequence[str], held: Collection[str]) -> None:
        """Add what a claim occupies to what it holds: an agent that offered its GPU differently recorded less.

        Raises: LedgerError.
        """
        if missing := [(name, uid) for name in occupied if name not in held]:
            sql = "INSERT OR IGNORE INTO holds (device, claim_uid) VALUES (?, ?)"
            self._write(lambda connection: connection.executemany(sql, missing))

    def set_steps(self, uid: str, steps: Sequence[RecordedStep]) -> None:
        """Record what the steps found or made. Raises: LedgerError."""
        self._execute("UPDATE claims SET steps = ? WHERE uid = ?", (steps_text(steps), uid))

    def set_allocation(self, uid: str, allocation: Wire) -> None:
        """Record the allocation of a claim and what else the API server reports about it. Raises: LedgerError."""
        self._execute("UPDATE claims SET allocation = ? WHERE uid = ?", (json_text(allocation), uid))

    def set_mode(self, gpu: str, boot_id: str | None) -> None:
        """Record that this driver switches a GPU's MIG mode on in this boot; None if it is off again.

        The record counts in this boot only, so it need not outlive a power failure. Raises: LedgerError.
        """
        if boot_id is None:
            self._execute("DELETE FROM mig_modes WHERE gpu = ?", (gpu,), is_synced=False)
        else:
            sql = "INSERT OR REPLACE INTO mig_modes (gpu, boot_id) VALUES (?, ?)"
            self._execute(sql, (gpu, boot_id), is_synced=False)

    def disown_ended_mode(self, gpu: str, uid: str) -> None:
        """Forget that a GPU's MIG mode is this driver's, where claims that are being undone beside `uid` have parts.

        The caller holds the GPU's lock and has switched the mode off. Without such claims `forget` removes the record,
        in the same transaction as the claim; with them it would leave it to those, which did not switch the mode off.
        Raises: LedgerError.
        """
        self._write(lambda connection: disown_ended_mode(connection, gpu, uid), is_synced=False)

    def set_boot(self, uid: str, boot_id: str) -> None:
        """Record that the claim's effects were made again in this boot. Raises: LedgerError."""
        self._execute("UPDATE claims SET boot_id = ? WHERE uid = ?", (boot_id, uid))

    def set_gone(self, uid: str, since: float | None, boot_id: str) -> None:
        """Record since when the claim has been missing in the API (seconds of boot time), None when it exists."""
        self._execute("UPDATE claims SET gone_since = ?, gone_boot = ? WHERE uid = ?", (since, boot_id, uid))

    def complete(self, record: ClaimRecord, claim: AllocatedClaim, occupied: Sequence[str] = ()) -> None:
        """Replace a recovered record and its holds by what the API server reports about the claim.

        Raises: LedgerError.
        """

        def job(connection: sqlite3.Connection) -> None:
            delete(connection, record.uid)
            insert(connection, row_of_record(record), wanted_of(claim, occupied))

        self._write(job)

    def forget(self, record: ClaimRecord, pods: Collection[str] = (), modes_off: Collection[str] = ()) -> None:
        """Remove a claim that was undone and release its devices, except those that `pods` may still use.

        `modes_off` are the GPUs, by PCI address, whose MIG mode this driver has switched off again.
        Where the disk has no room for that, the claim is listed as unprepared, and the next write removes it.
        Raises: LedgerError.
        """

        def job(connection: sqlite3.Connection) -> None:
            remove(connection, record, pods, self._boot_id)
            disown_modes(connection, modes_off)

        try:
            self._write(job)
        except LedgerError as error:
            if error.code not in NO_ROOM:
                raise
            log.warning(
                "no room on the disk to forget a claim that was undone",
                extra=fields(claim=record.full_name, err=str(error)),
            )
            self._unprepared.add(record.uid)


@contextmanager
def as_far_as_there_is_room(what: str) -> Iterator[None]:
    """Let a write that is not needed for undoing fail on a full disk; what is left is tidied up later."""
    try:
        yield
    except LedgerError as error:
        if error.code not in NO_ROOM:
            raise
        log.warning("no room on the disk for the ledger, undoing continues", extra=fields(reason=what, err=str(error)))
