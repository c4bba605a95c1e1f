"""Ledger rows: the schema of the ledger, and the SQL that writes and removes claims in it.

In: records, what they hold, an open transaction. Out: rows. `user_version` is major * 1000 + minor. Whatever is added
within a major version has a default, so that agents that do not know it never need it.
Source: docs/decisions/0004.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Collection, Iterable
from enum import Enum, auto

from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger import device_effects, spans, unreleased
from dra_driver.plugin.ledger.conflicts import wanted_of
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState, record_of_row, row_of_record
from dra_driver.plugin.ledger.recorded_steps import RecordedPartition, RecordedSharing
from dra_driver.plugin.ledger.usage import claim_totals, usage_clock
from dra_driver.plugin.ledger.usage.older_spans import add_columns

MAJOR, MINOR = 1, 5
LATER_TABLES = (  # that version 1.0 of the ledger did not have
    "CREATE TABLE IF NOT EXISTS mig_modes (gpu TEXT PRIMARY KEY, boot_id TEXT NOT NULL) WITHOUT ROWID",
    *device_effects.SCHEMA,
    *unreleased.SCHEMA,
    *spans.SCHEMA,
    *usage_clock.SCHEMA,
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
