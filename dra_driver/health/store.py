"""Health store: `health.db` beside the ledger, so that after a restart each fault is still known with its start.

In: named JSON documents. Out: the same documents after a restart. Only the instance that holds the node's role writes;
any tool may read. A damaged file is set aside and replaced by a new one, because it is better to lose the record of
health than to lose the agent.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dra_driver.model.errors import LedgerError, Retry
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FILE_NAME = "health.db"
BUSY_SECONDS = 2.0
RECORD, GPUS, GRANTS = "record", "gpus", "grants"
_TABLE = "CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, body TEXT NOT NULL)"


class HealthStore:
    """The documents of one node. Every call opens the file, because calls are rare."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def read(self) -> Mapping[str, Any]:
        """Return all documents by name, or none if there is no file. Raises: LedgerError."""
        if not self._path.exists():
            return {}
        try:
            with closing(self._connect("ro")) as connection:
                rows = connection.execute("SELECT name, body FROM documents").fetchall()
            return {str(name): json.loads(body) for name, body in rows}
        except sqlite3.OperationalError as error:
            raise self._fault(error) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise LedgerError("health-damaged", f"{self._path} is damaged: {error}", retry=Retry.NEVER) from error

    def write(self, documents: Mapping[str, Any]) -> None:
        """Replace these documents durably, either all of them or none. Raises: LedgerError."""
        rows = [(name, json.dumps(body, separators=(",", ":"))) for name, body in documents.items()]
        try:
            with closing(self._connect("rwc")) as connection, connection:
                connection.execute(_TABLE)
                connection.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise self._fault(error) from error
        except sqlite3.DatabaseError as error:
            self.set_aside()
            raise LedgerError("health-damaged", f"{self._path} is damaged: {error}", retry=Retry.NOW) from error

    def set_aside(self) -> None:
        """Rename a damaged file, so that the next write begins a new one."""
        aside = self._path.with_name(f"{FILE_NAME}.damaged")
        with suppress(OSError):
            self._path.replace(aside)
            log.error("health store is damaged and was set aside", extra=fields(file=str(aside)))

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._path))}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)

    def _fault(self, error: sqlite3.Error) -> LedgerError:
        hint = "the plugin's data folder must exist and be writable, with free space"
        return LedgerError("health", f"{self._path}: {error}", hint=hint, retry=Retry.LATER)
