"""Claim totals, in the ledger: the hours of claims whose spans were settled.

In: spans that have ended. Out: the hours of each claim, by kind of device, so that a claim that is prepared again goes
on from them, and the end of a claim outlives the agent until a scrape has seen it. The claims that ended first are
forgotten when there are too many.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from dra_driver.claims.allocated.records import pod_names_of_record
from dra_driver.model.records import json_text
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger.device_effects import LedgerQuery
from dra_driver.plugin.ledger.usage.span import Span, TotalKey

SCHEMA = (  # since ledger version 1.5
    """CREATE TABLE IF NOT EXISTS claim_totals (
        claim_uid TEXT NOT NULL, key TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, pod TEXT NOT NULL,
        allocated REAL NOT NULL, ended_s REAL NOT NULL, PRIMARY KEY (claim_uid, key)) WITHOUT ROWID""",
)
MAX_ROWS = 4096
_COLUMNS = "claim_uid, key, namespace, name, pod, allocated, ended_s"
_ADD = (
    f"INSERT INTO claim_totals ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (claim_uid, key) DO UPDATE "  # noqa: S608
    "SET allocated = allocated + excluded.allocated, ended_s = excluded.ended_s, pod = excluded.pod"
)
_FIRST_TOO_MANY = "SELECT ended_s FROM claim_totals ORDER BY ended_s DESC LIMIT 1 OFFSET ?"
_DROP_OLDEST = f"DELETE FROM claim_totals WHERE ended_s <= ({_FIRST_TOO_MANY})"  # noqa: S608
_READ = f"SELECT {_COLUMNS} FROM claim_totals WHERE "  # noqa: S608


class ClaimTotal(NamedTuple):
    """The hours of a claim under one key, and when the claim ended last, by the usage clock."""

    uid: str
    key: TotalKey
    namespace: str
    name: str
    pod: str
    allocated: float
    ended: float


class ClaimTotals:
    """The claim totals of one ledger."""

    def __init__(self, read: LedgerQuery) -> None:
        self._read = read

    def of_claim(self, uid: str) -> tuple[ClaimTotal, ...]:
        """Return the totals of a claim. Raises: LedgerError."""
        return tuple(map(_total, self._read(f"{_READ} claim_uid = ?", (uid,))))

    def ended_since(self, time_s: float) -> tuple[ClaimTotal, ...]:
        """Return the totals of claims that have ended since a time. Raises: LedgerError."""
        return tuple(map(_total, self._read(f"{_READ} ended_s >= ?", (time_s,))))


def add_claim_totals(connection: sqlite3.Connection, span: Span, amounts: Mapping[TotalKey, float]) -> None:
    """Add a span that has ended to the totals of its claim."""
    pod = only_pod(span.allocation)
    rows = [
        (span.uid, json_text(list(key)), span.namespace, span.name, pod, seconds, span.ended)
        for key, seconds in amounts.items()
    ]
    connection.executemany(_ADD, rows)


def drop_oldest(connection: sqlite3.Connection) -> None:
    """Forget the claims that ended first if there are too many."""
    connection.execute(_DROP_OLDEST, (MAX_ROWS,))


def only_pod(allocation: Wire) -> str:
    """Return the name of the only pod for which a claim was reserved; "" if there were several, or none is known."""
    names = {name for _, name in pod_names_of_record(allocation)}
    return names.pop() if len(names) == 1 else ""


def _total(row: sqlite3.Row) -> ClaimTotal:
    uid, key, *more = row
    return ClaimTotal(uid, tuple(json.loads(key)), *more)
