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
from pathlib import Path

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim
from dra_driver.model.errors import LedgerError
from dra_driver.model.names import is_of_gpu
from dra_driver.model.records import json_text
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger import spans
from dra_driver.plugin.ledger.claim_files import ClaimFiles, NoClaimFiles
from dra_driver.plugin.ledger.claim_queries import ClaimQueries
from dra_driver.plugin.ledger.conflicts import Conflict, conflicts_of, conflicts_query, wanted_of
from dra_driver.plugin.ledger.device_effects import DeviceEffects, EffectHolder
from dra_driver.plugin.ledger.ledger_rows import (
    delete,
    insert,
    record_mode_changes,
    remove,
    remove_ended_mode_record,
    remove_mode_records,
)
from dra_driver.plugin.ledger.record import NEVER_GONE, ClaimRecord, ClaimState, row_of_record
from dra_driver.plugin.ledger.recorded_steps import RecordedStep
from dra_driver.plugin.ledger.step_records import text_of_steps
from dra_driver.plugin.ledger.unreleased import UnreleasedClaims, unreleased_conflicts, unreleased_query
from dra_driver.plugin.ledger.usage.claim_totals import ClaimTotals
from dra_driver.store.connections import NO_ROOM
from dra_driver.telemetry.logs import fields

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
        kept = [claim for claim in self.unreleased.of_boot(self._boot_id) if not claim.is_over]
        rows += [
            (name, f"{claim.record().full_name} (its pod may still run)") for claim in kept for name in claim.devices
        ]
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
                record = kept[1]._replace(state=ClaimState.PREPARED, steps=tuple(steps))
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
