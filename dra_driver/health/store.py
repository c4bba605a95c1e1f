"""Health store: `health.db` beside the ledger, so that after a restart each fault is still known with its start.

In: named JSON documents. Out: the same documents after a restart. Only the instance that holds the node's role writes;
any tool may read. What is done if the file fails: `kept_file`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.health.kept_file import KeptDatabase, is_damaged
from dra_driver.model.errors import LedgerError

FILE_NAME = "health.db"
RECORD, GPUS, GRANTS, CORDONS, UNPROVEN = "record", "gpus", "grants", "cordons", "unproven"
_TABLE = "CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, body TEXT NOT NULL)"


class HealthStore:
    """The documents of one node."""

    def __init__(self, folder: Path) -> None:
        self._file = KeptDatabase(folder / FILE_NAME, ("health", "health-damaged"), [_TABLE])

    def read(self) -> Mapping[str, Any]:
        """Return all documents by name, or none if there is no file. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> dict[str, Any]:
            rows = connection.execute("SELECT name, body FROM documents").fetchall()
            return {str(name): json.loads(body) for name, body in rows}

        return self._file.read(read, {})

    def write(self, documents: Mapping[str, Any]) -> None:
        """Replace these documents durably, either all of them or none. Raises: LedgerError.

        A damaged file is set aside; the next write begins a new one.
        """
        rows = [(name, json.dumps(body, separators=(",", ":"))) for name, body in documents.items()]
        try:
            self._file.write(
                lambda connection: connection.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", rows)
            )
        except LedgerError as error:
            if is_damaged(error):
                self.set_aside()
            raise

    def may_have_lost(self, name: str, documents: Mapping[str, Any]) -> bool:
        """Return whether a document that is not among these may have been in a damaged file."""
        return name not in documents and self._file.was_set_aside

    def set_aside(self) -> None:
        """Set a damaged file aside. Raises: LedgerError if that is impossible."""
        self._file.set_aside()
