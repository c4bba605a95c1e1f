"""RemediationJournal: `remediation.db` beside the ledger. What was done to a GPU is on disk before the next step.

In: cases and actions. Out: the same after a crash or a reboot. Only the instance that holds the node's role writes; any
tool may read. A damaged file is set aside, which is logged; the actions that count for budgets are lost with it.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from dra_driver.model.errors import LedgerError, Retry
from dra_driver.remediation.budgets import WEEK_SECONDS, ActionRow
from dra_driver.remediation.case import RemediationCase
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)
T = TypeVar("T")

FILE_NAME = "remediation.db"
BUSY_SECONDS = 2.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS cases (gpu TEXT PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS actions (at REAL NOT NULL, uuid TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT)",
)


class RemediationJournal:
    """The journal of one node. Every call opens the file, because calls are rare."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def cases(self) -> tuple[RemediationCase, ...]:
        """Return the last case of each GPU, in order of PCI addresses. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> tuple[RemediationCase, ...]:
            rows = connection.execute("SELECT body FROM cases ORDER BY gpu").fetchall()
            return tuple(RemediationCase.from_wire(json.loads(body)) for (body,) in rows)

        return self._read(read, ())

    def actions(self) -> tuple[ActionRow, ...]:
        """Return the actions of the last seven days and some older ones, the oldest first. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> tuple[ActionRow, ...]:
            rows = connection.execute("SELECT at, uuid, action, outcome FROM actions ORDER BY at, rowid").fetchall()
            return tuple(ActionRow(float(at), str(uuid), str(what), str(how or "")) for at, uuid, what, how in rows)

        return self._read(read, ())

    def write(self, case: RemediationCase, began: ActionRow | None = None, outcome: str = "") -> None:
        """Replace a GPU's case durably.

        With `began`, an action is added in the same transaction; with `outcome`, the outcome of the GPU's last action
        is set. Raises: LedgerError.
        """

        def work(connection: sqlite3.Connection) -> None:
            for table in _TABLES:
                connection.execute(table)
            body = json.dumps(case.to_wire(), separators=(",", ":"))
            connection.execute("INSERT OR REPLACE INTO cases VALUES (?, ?)", (case.gpu, body))
            if began is not None:
                connection.execute("DELETE FROM actions WHERE at < ?", (began.at - 5 * WEEK_SECONDS,))
                row = (began.at, began.uuid, began.action, began.outcome)
                connection.execute("INSERT INTO actions VALUES (?, ?, ?, ?)", row)
            if outcome:
                last = "SELECT rowid FROM actions WHERE uuid = ? ORDER BY at DESC, rowid DESC LIMIT 1"
                connection.execute(f"UPDATE actions SET outcome = ? WHERE rowid = ({last})", (outcome, case.uuid))  # noqa: S608

        self._run("rwc", work)

    def forget(self, gpu: str) -> None:
        """Remove a GPU's case, but not the record of the actions on it. Raises: LedgerError."""
        if self._path.exists():
            self._run("rw", lambda connection: connection.execute("DELETE FROM cases WHERE gpu = ?", (gpu,)))

    def set_aside(self) -> None:
        """Rename a damaged file, so that the next write begins a new one."""
        aside = self._path.with_name(f"{FILE_NAME}.damaged")
        with suppress(OSError):
            self._path.replace(aside)
            log.error("remediation journal is damaged and was set aside", extra=fields(file=str(aside)))

    def _read(self, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        return self._run("ro", work) if self._path.exists() else nothing

    def _run(self, mode: str, work: Callable[[sqlite3.Connection], T]) -> T:
        uri = f"file:{quote(str(self._path))}?mode={mode}"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection, connection:
                return work(connection)
        except sqlite3.OperationalError as error:
            hint = "the plugin's data folder must exist and be writable, with free space"
            raise LedgerError("remediation", f"{self._path}: {error}", hint=hint, retry=Retry.LATER) from error
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            raise LedgerError("remediation-damaged", f"{self._path} is damaged: {error}", retry=Retry.NEVER) from error
