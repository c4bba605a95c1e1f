"""Health store: the part of the state in which faults are kept, so that each is still known after a restart.

In: named JSON documents. Out: the same documents after a restart. Only the instance that holds the node's role writes;
any tool may read. What is done if the file fails: `store/state.py`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.model.errors import LedgerError
from dra_driver.store.state import Part, StatePart, is_damaged

RECORD, GPUS, GRANTS, UNPROVEN = "record", "gpus", "grants", "unproven"
_PART = Part("health", "health-damaged", {"documents": "name TEXT PRIMARY KEY, body TEXT NOT NULL"}, older="health.db")
_PUT = (
    "INSERT INTO documents VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body "
    "WHERE body <> excluded.body"
)


class HealthStore:
    """The documents of one node."""

    def __init__(self, folder: Path) -> None:
        self._part = StatePart(folder, _PART)

    def read(self) -> Mapping[str, Any]:
        """Return all documents by name, or none if there is no file. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> dict[str, Any]:
            rows = connection.execute("SELECT name, body FROM documents").fetchall()
            return {str(name): json.loads(body) for name, body in rows}

        return self._part.read(read, {})

    def write(self, documents: Mapping[str, Any]) -> None:
        """Replace these documents durably, either all of them or none. Raises: LedgerError.

        A damaged file is set aside; the next write begins a new one.
        """
        rows = [(name, json.dumps(body, separators=(",", ":"))) for name, body in documents.items()]
        try:
            self._part.write(lambda connection: connection.executemany(_PUT, rows))
        except LedgerError as error:
            if is_damaged(error):
                self.set_aside()
            raise

    def may_have_lost(self, name: str, documents: Mapping[str, Any]) -> bool:
        """Return whether a document that is not among these may have been in a damaged file."""
        return name not in documents and self._part.is_lost()

    def set_aside(self) -> None:
        """Set a damaged file aside. Raises: LedgerError if that is impossible."""
        self._part.set_aside()

    def written_at(self) -> float | None:
        """Return when the store was written last, in seconds since 1970; None if it never was."""
        return self._part.written_at()
