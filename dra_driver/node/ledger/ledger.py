"""Ledger: the durable record of which claim holds which device on this node. Unprepare and repair work from it.

An intent is recorded before the first effect, and the commit after the last. `ledger_file` opens the file and makes a
new one when it is lost; `ledger_rows` has its schema, and `claim_queries` what is read from it. On a full disk, claims
can still be forgotten: they are listed in a file beside the ledger (`unprepared`), and their rows are hidden from every
reader.
Source: docs/decisions/0004.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dra_driver.base.errors import LedgerError
from dra_driver.base.machine import FifoCache
from dra_driver.base.names import is_of_gpu
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import Wire, json_text
from dra_driver.node.claims.allocated import AllocatedClaim
from dra_driver.node.ledger import spans
from dra_driver.node.ledger.access import LedgerAccess
from dra_driver.node.ledger.database import NO_ROOM
from dra_driver.node.ledger.device_effects import DeviceEffects, EffectHolder
from dra_driver.node.ledger.ledger_file import (
    ModeEnd,
    delete,
    insert,
    parts_of,
    record_mode_changes,
    remove,
    remove_ended_mode_record,
    remove_mode_records,
)
from dra_driver.node.ledger.record import (
    NEVER_GONE,
    UNFINISHED,
    ClaimFiles,
    ClaimRecord,
    ClaimState,
    NoClaimFiles,
    record_of_row,
    row_of_record,
    text_of_steps,
)
from dra_driver.node.ledger.recorded_steps import RecordedStep
from dra_driver.node.ledger.spans import ClaimTotals
from dra_driver.node.ledger.unreleased import (
    Conflict,
    Hold,
    UnreleasedClaims,
    conflicts_of,
    conflicts_query,
    replica_bounds,
    unreleased_conflicts,
    unreleased_query,
    wanted_of,
)

# Claim queries: what the ledger has recorded about claims, what they hold, and MIG modes.

_MAX_CACHED = 64  # records: a node with 8 GPUs of seven partitions each has at most 56 claims
_WITH_HOLDS = (  # in one query, because a repeated Prepare needs both; no device name contains a space
    "SELECT *, (SELECT group_concat(device, ' ') FROM holds WHERE claim_uid = claims.uid) AS held "
    "FROM claims WHERE uid = ?"
)
_PARTS = "'gpu-' || replace(replace(gpu, ':', '-'), '.', '-') || '/'"  # what the names of a GPU's parts begin with
_WITH_MODES = (  # likewise, because Unprepare needs both
    "SELECT *, (SELECT group_concat(gpu, ' ') FROM mig_modes WHERE boot_id = ? AND NOT EXISTS (SELECT 1 FROM holds "  # noqa: S608
    f"WHERE device BETWEEN {_PARTS} AND {_PARTS} || '~' AND claim_uid <> ?)) AS alone_on FROM claims WHERE uid = ?"
)


class ClaimQueries(LedgerAccess):
    """The ledger's reading side; for the arguments see `Ledger`."""

    def __init__(self, path: Path, *, boot_id: str, files: ClaimFiles, reads_only: bool) -> None:
        super().__init__(path, boot_id=boot_id, files=files, reads_only=reads_only)
        # By UID: the row as it was last read or written, and its record, which then need not be parsed again.
        self._kept: FifoCache[str, tuple[Wire, ClaimRecord]] = FifoCache(_MAX_CACHED)

    def get(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim, or None if the ledger does not know the claim. Raises: LedgerError."""
        return self.get_with_holds(uid)[0]

    def get_with_holds(self, uid: str) -> tuple[ClaimRecord | None, frozenset[str]]:
        """Return a claim's record (`get`) and the names of the devices and GPU parts that it holds.

        Raises: LedgerError.
        """
        rows = self._read(_WITH_HOLDS, (uid,))
        return self._record_with("held", rows) if rows else (None, frozenset())

    def get_with_modes(self, uid: str) -> tuple[ClaimRecord | None, frozenset[str]]:
        """Return a claim's record (`get`) and the GPUs that have no parts of other claims and whose MIG mode is ours.

        The latter are given by PCI address; see `mode_end`, which is the same for one GPU. Raises: LedgerError.
        """
        if self.is_read_only:
            return self.get(uid), frozenset()
        rows = self._read(_WITH_MODES, (self._boot_id, uid, uid))
        return self._record_with("alone_on", rows) if rows else (None, frozenset())

    def _record_with(self, names: str, rows: list[sqlite3.Row]) -> tuple[ClaimRecord, frozenset[str]]:
        """Return the record in the first row, and the names in another of its columns."""
        row = dict(rows[0])
        found, uid = frozenset((row.pop(names) or "").split()), row["uid"]
        kept = self._kept.get(uid)
        if kept is not None and kept[0] == row:
            return kept[1], found
        record = record_of_row(rows[0])
        self._kept.keep(uid, (row, record))
        return record, found

    def records(self) -> tuple[ClaimRecord, ...]:
        """Return the records of all claims, for start-up and the reaper: no call of the kubelet may read them all.

        Raises: LedgerError.
        """
        return tuple(record_of_row(row) for row in self._read("SELECT * FROM claims ORDER BY uid"))

    def with_step(self, kind: type[RecordedStep]) -> tuple[ClaimRecord, ...]:
        """Return the claims that recorded a step of a type. All rows are searched, but only those claims are parsed.

        Raises: LedgerError.
        """
        rows = self._read("SELECT * FROM claims WHERE instr(steps, ?) ORDER BY uid", (json_text(kind.kind),))
        return tuple(record for record in map(record_of_row, rows) if record.steps_of(kind))

    def with_step_on(self, kind: type[RecordedStep], device: str) -> tuple[ClaimRecord, ...]:
        """Return the claims that hold a device, or a replica of it, and recorded a step of a type.

        An index finds them, so no other row is read. Raises: LedgerError.
        """
        sql = (
            "SELECT * FROM claims WHERE uid IN "
            "(SELECT claim_uid FROM holds WHERE device = ? OR device BETWEEN ? AND ?) ORDER BY uid"
        )
        rows = self._read(sql, (device, *replica_bounds(device)))
        return tuple(record for record in map(record_of_row, rows) if record.steps_of(kind))

    def with_device(self, devices: Collection[str]) -> tuple[ClaimRecord, ...]:
        """Return the claims to which one of these devices is allocated, with admin access or without.

        All rows are searched, but only those claims are parsed. Raises: LedgerError.
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
        """Return the namespaces and names of the claims whose name is known. No claim is parsed."""
        rows = self._read("SELECT namespace, name FROM claims WHERE name <> ''")
        return frozenset((row["namespace"], row["name"]) for row in rows)

    def unfinished(self) -> tuple[str, ...]:
        """Return the UIDs of claims whose preparation or unpreparation was begun and not completed.

        Raises: LedgerError.
        """
        marks = ", ".join("?" for _ in UNFINISHED)
        return tuple(r["uid"] for r in self._read(f"SELECT uid FROM claims WHERE state IN ({marks})", UNFINISHED))  # noqa: S608

    def count(self) -> int:
        """Return the number of claims. Raises: LedgerError."""
        return int(self._read("SELECT count(*) AS n FROM claims")[0]["n"])

    def conflicts(self, claim: AllocatedClaim, occupied: Sequence[str] = (), *, boot_id: str) -> tuple[Conflict, ...]:
        """Return what other claims hold of the devices that this claim is to own, and of the parts it occupies.

        Claims of this boot that were unprepared while their containers may still run count as well. Two shares of one
        device don't conflict. Raises: LedgerError.
        """
        wanted = wanted_of(claim, occupied)
        if not wanted:
            return ()
        conflicts = conflicts_of(self._read(*conflicts_query(claim.uid, wanted)), wanted)
        return conflicts + unreleased_conflicts(self._read(*unreleased_query(boot_id)), claim.uid, wanted)

    def holds(self) -> tuple[Hold, ...]:
        """Return what claims hold: devices and parts of GPUs. No claim is parsed. Raises: LedgerError."""
        sql = "SELECT holds.device, holds.share_id, claims.namespace FROM holds JOIN claims ON claims.uid = claim_uid"
        return tuple(Hold(row["device"], row["share_id"], row["namespace"]) for row in self._read(sql))

    def held(self) -> frozenset[str]:
        """Return the name of every device, and of every part of a GPU, that a claim holds. Raises: LedgerError."""
        sql = "SELECT DISTINCT device FROM holds JOIN claims ON claims.uid = holds.claim_uid"
        return frozenset(row["device"] for row in self._read(sql))

    def mode_end(self, gpu: str, boot_id: str, *, other_than: str) -> ModeEnd:
        """Return whether a GPU's MIG mode may end: this driver switched it on, and no other claim needs it.

        Another claim needs it if it occupies the GPU or a part of it and is not being undone itself. `gpu` is a PCI
        address, and `other_than` is the UID of the claim that asks. Raises: LedgerError.
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
        """Return the PCI addresses of the GPUs on which this driver has switched MIG mode on in a boot."""
        if not self.is_read_only or self._reads_only:
            rows = self._read("SELECT gpu FROM mig_modes WHERE boot_id = ?", (boot_id,))
            return frozenset(row["gpu"] for row in rows)
        return frozenset()


log = logging.getLogger(__name__)


class Ledger(ClaimQueries):
    """The ledger at `path`. Any number of threads, and two agents, may use it at once.

    Args:
        path: the SQLite file, which is made if it does not exist.
        boot_id: the boot in which this process runs.
        files: the claims' CDI files, from which the ledger is rebuilt when it is lost.
        reads_only: whether the ledger of another process is only inspected, and never written.
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
        self.unreleased = UnreleasedClaims(self._read, self._write, boot_id)
        self.spans = spans.ClaimSpans(self._read, self._write, self._boot_id)
        self.claim_totals = ClaimTotals(self._read)
        self.keeps_spans = False  # whether the times at which claims are prepared and unprepared are recorded
        # What each device of a claim counts, from its namespace and allocation; "" is left to the meter.
        self.charges_of: Callable[[str, Wire], str] = lambda _namespace, _allocation: ""
        self.open()

    def is_empty(self) -> bool:
        """Return whether removing the file would lose nothing. Raises: LedgerError."""
        if self.is_read_only or self.count() or self.unreleased.has_any():
            return False
        return not self.effects.names() and not self._read("SELECT 1 FROM mig_modes LIMIT 1")

    def holders(self, gpus: Collection[str]) -> Mapping[str, str]:
        """Return the holders of each device, and each part, of some GPUs, in words. `gpus` are names of whole GPUs.

        Claims of this boot that were unprepared while their containers may still run count as well. No claim is parsed.
        Raises: LedgerError.
        """
        sql = (
            "SELECT holds.device, claims.uid, claims.namespace, claims.name "
            "FROM holds JOIN claims ON claims.uid = claim_uid ORDER BY device, uid"
        )
        rows = [(row[0], EffectHolder(*tuple(row)[1:]).full_name) for row in self._read(sql)]
        for kept in self.unreleased.of_boot(self._boot_id):
            parts = (name for name in kept.devices if "/" in name)
            holder = f"{kept.record().full_name} (its pod may still run)"
            rows += [(name, holder) for name in (*kept.names, *parts) if kept.is_in_force]
        found: dict[str, dict[str, None]] = {}  # each claim once, though it may have several shares of a device
        for device, claim in rows:
            if any(is_of_gpu(device, gpu) for gpu in gpus):
                found.setdefault(device, {})[f"claim {claim}"] = None
        return {device: ", ".join(claims) for device, claims in found.items()}

    def intend(
        self, record: ClaimRecord, claim: AllocatedClaim, occupied: Sequence[str] = (), *, is_synced: bool = True
    ) -> tuple[Conflict, ...]:
        """Record the intent to prepare a claim, together with what the claim is to hold.

        If other claims hold any of that, return those conflicts and write nothing. The same transaction records which
        GPUs' MIG mode this driver switches on for the intent's partitions. With `is_synced` false the write may be
        lost in a power failure, which is right if a power failure removes all effects of the intent too.
        Raises: LedgerError.
        """
        wanted = wanted_of(claim, occupied)
        sql, values = conflicts_query(claim.uid, wanted)
        row = row_of_record(record)
        self._kept.keep(record.uid, ({**row, **NEVER_GONE}, record))
        charges = self._charges_of(record) if record.state == ClaimState.PREPARED else None

        def job(connection: sqlite3.Connection) -> tuple[Conflict, ...]:
            conflicts = conflicts_of(connection.execute(sql, values).fetchall(), wanted) if wanted else ()
            conflicts += unreleased_conflicts(
                connection.execute(*unreleased_query(record.boot_id)).fetchall(), claim.uid, wanted
            )
            if not conflicts:
                insert(connection, row, wanted)
                record_mode_changes(connection, record)
                if charges is not None:
                    spans.begin(connection, record.uid, charges, self._boot_id)
            return conflicts

        return self._write(job, is_synced=is_synced)

    def set_state(self, uid: str, state: ClaimState, *, is_synced: bool = True) -> None:
        """Set the state of a claim. Raises: LedgerError."""
        self._execute("UPDATE claims SET state = ? WHERE uid = ?", (str(state), uid), is_synced=is_synced)

    def commit(self, uid: str, steps: Sequence[RecordedStep] | None = None) -> None:
        """Record that all effects are done; `steps`, if given, replace the recorded ones. Raises: LedgerError."""
        kept = self._kept.get(uid)
        charges = self._charges_of(kept[1] if kept is not None else None)
        changes = {"state": str(ClaimState.PREPARED)}
        if steps is not None:
            changes["steps"] = text_of_steps(steps)
            if kept is not None:  # so that the next call need not parse what this call knows
                record = replace(kept[1], state=ClaimState.PREPARED, steps=tuple(steps))
                self._kept.keep(uid, ({**kept[0], **changes}, record))

        def job(connection: sqlite3.Connection) -> None:
            columns = ", ".join(f"{name} = ?" for name in changes)
            connection.execute(f"UPDATE claims SET {columns} WHERE uid = ?", (*changes.values(), uid))  # noqa: S608
            if charges is not None:
                spans.begin(connection, uid, charges, self._boot_id)

        self._write(job)

    def _charges_of(self, record: ClaimRecord | None) -> str | None:
        """Return what a claim's devices count, "" if that is not known here; None if no spans are kept."""
        if not self.keeps_spans:
            return None
        return "" if record is None else self.charges_of(record.namespace, record.allocation)

    def hold(self, uid: str, occupied: Sequence[str], held: Collection[str]) -> None:
        """Record the parts that a claim occupies and does not hold yet (`held` are those that it holds).

        An agent that offered the claim's GPU differently may have recorded less. Raises: LedgerError.
        """
        if missing := [(name, uid) for name in occupied if name not in held]:
            sql = "INSERT OR IGNORE INTO holds (device, claim_uid) VALUES (?, ?)"
            self._write(lambda connection: connection.executemany(sql, missing))

    def set_steps(self, uid: str, steps: Sequence[RecordedStep]) -> None:
        """Record what the steps found or made. Raises: LedgerError."""
        self._execute("UPDATE claims SET steps = ? WHERE uid = ?", (text_of_steps(steps), uid))

    def set_allocation(self, uid: str, allocation: Wire) -> None:
        """Record the allocation of a claim and what else the API server reports about it. Raises: LedgerError."""
        self._execute("UPDATE claims SET allocation = ? WHERE uid = ?", (json_text(allocation), uid))

    def set_mode(self, gpu: str, boot_id: str | None) -> None:
        """Record that this driver switches a GPU's MIG mode on in this boot; with `boot_id` None, remove the record.

        The record counts in this boot only, so it need not outlive a power failure. Raises: LedgerError.
        """
        if boot_id is None:
            self._execute("DELETE FROM mig_modes WHERE gpu = ?", (gpu,), is_synced=False)
        else:
            sql = "INSERT OR REPLACE INTO mig_modes (gpu, boot_id) VALUES (?, ?)"
            self._execute(sql, (gpu, boot_id), is_synced=False)

    def remove_ended_mode_record(self, gpu: str, uid: str) -> None:
        """Remove the record that a GPU's MIG mode is this driver's while other claims with parts of it are undone.

        The caller is undoing the claim `uid`, holds the GPU's lock and has switched the mode off. If no other claim has
        a part of the GPU, `forget` removes the record together with the claim instead. Raises: LedgerError.
        """
        self._write(lambda connection: remove_ended_mode_record(connection, gpu, uid), is_synced=False)

    def set_boot(self, uid: str, boot_id: str) -> None:
        """Record that the claim's effects were made again in this boot. Raises: LedgerError."""
        self._execute("UPDATE claims SET boot_id = ? WHERE uid = ?", (boot_id, uid))

    def set_gone(self, uid: str, since: float | None, boot_id: str) -> None:
        """Record since when the claim has been missing from the API (seconds of boot time); None if it exists."""
        self._execute("UPDATE claims SET gone_since = ?, gone_boot = ? WHERE uid = ?", (since, boot_id, uid))

    def complete(self, record: ClaimRecord, claim: AllocatedClaim, occupied: Sequence[str] = ()) -> None:
        """Replace a recovered record and its holds with what the API server reports about the claim.

        Raises: LedgerError.
        """

        def job(connection: sqlite3.Connection) -> None:
            delete(connection, record.uid)
            insert(connection, row_of_record(record), wanted_of(claim, occupied))

        self._write(job)

    def forget(
        self,
        record: ClaimRecord,
        pods: Collection[str] = (),
        modes_off: Collection[str] = (),
        nodes: Collection[int] = (),
    ) -> None:
        """Remove a claim that was undone, and release its devices unless `pods` may still use them.

        With `nodes`, the numbers of their device nodes, they are released once it is seen that no container uses these.
        `modes_off` are the GPUs, by PCI address, whose MIG mode this driver has switched off again. If the disk has no
        room for the write, the claim is listed as unprepared, and the next write that succeeds removes it.
        Raises: LedgerError.
        """

        def job(connection: sqlite3.Connection) -> None:
            remove(connection, record, pods, self._boot_id, nodes)
            remove_mode_records(connection, modes_off)

        try:
            self._write(job)
        except LedgerError as error:
            if error.code not in NO_ROOM:
                raise
            log.warning(
                "the disk has no room to record that a claim was undone; it is listed as unprepared instead",
                extra=fields(claim=record.full_name, err=str(error)),
            )
            self._unsettled_nodes[record.uid] = tuple(nodes)
            self._unprepared.add(record.uid)
