"""Ledger rows: the content of the agent's ledger, read without changing it.

In: the ledger's path. Out: rows. The file is opened read-only; repairing it is the agent's task.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dra_driver.model.errors import LedgerError
from dra_driver.plugin.ledger.record import record_of_row
from dra_driver.plugin.ledger.recorded_steps import RecordedFile, UnknownStep


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One claim as the agent has recorded it. `kinds` are those of its steps; `has_file`: one of them is a CDI file."""

    uid: str
    name: str
    state: str
    boot_id: str
    devices: tuple[str, ...]
    has_file: bool
    kinds: tuple[str, ...] = ()


def read_ledger(path: Path) -> tuple[LedgerRow, ...]:
    """Return every row; none if there is no ledger.

    Raises: PermissionError if it may not be read, ValueError if it is damaged.
    """
    if not path.exists():
        return ()
    if not os.access(path, os.R_OK):
        raise PermissionError(path)
    # Without a write-ahead log no process has the ledger open, and SQLite must not create one only to read the ledger.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute("SELECT * FROM claims ORDER BY uid").fetchall()
        return tuple(_row(row) for row in rows)
    except (sqlite3.Error, LedgerError) as fault:
        raise ValueError(f"{path}: {fault}") from fault


def _row(row: sqlite3.Row) -> LedgerRow:
    record = record_of_row(row)
    return LedgerRow(
        uid=record.uid,
        name=record.full_name,
        state=str(record.state),
        boot_id=record.boot_id,
        devices=record.owned_names(),
        has_file=bool(record.steps_of(RecordedFile)),
        kinds=tuple(step.name if isinstance(step, UnknownStep) else step.kind for step in record.steps),
    )
