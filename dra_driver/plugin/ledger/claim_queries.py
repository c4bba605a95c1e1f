"""Claim queries: what the ledger has recorded about claims, what they hold, and MIG modes.

Every query sees the rows as `LedgerAccess` shows them. The latest records are kept in memory with their rows, because
parsing a row again costs more than reading it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.records import json_text
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger.access import LedgerAccess
from dra_driver.plugin.ledger.claim_files import ClaimFiles
from dra_driver.plugin.ledger.conflicts import Conflict, Hold, conflicts_of, conflicts_query, replica_bounds, wanted_of
from dra_driver.plugin.ledger.ledger_rows import ModeEnd, parts_of
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimRecord, ClaimState, record_of_row
from dra_driver.plugin.ledger.recorded_steps import RecordedStep
from dra_driver.plugin.ledger.unreleased import unreleased_conflicts, unreleased_query

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
