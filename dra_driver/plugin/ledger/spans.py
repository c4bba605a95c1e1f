"""Spans, in the ledger: the times for which each claim was prepared, and their totals.

In: claims that come and go, in the transactions that record them. Out: spans for the meter of the node, and totals
that outlive the agent. One transaction adds a span that has ended to the totals and removes it, so no second is lost
or counted twice, whenever the agent is killed. Times are seconds since 1970. Nothing is recorded unless
`Ledger.keeps_spans` is set.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from dra_driver.model.records import RecordForm, json_text
from dra_driver.model.wire import Wire
from dra_driver.plugin.ledger.device_effects import LedgerQuery, Write
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState

SCHEMA = (  # since ledger version 1.4
    """CREATE TABLE IF NOT EXISTS spans (
        id INTEGER PRIMARY KEY, claim_uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        allocation TEXT NOT NULL, began REAL NOT NULL, ended REAL)""",
    "CREATE INDEX IF NOT EXISTS spans_of_claim ON spans (claim_uid)",
    """CREATE TABLE IF NOT EXISTS usage_totals (
        key TEXT PRIMARY KEY, allocated REAL NOT NULL, busy REAL NOT NULL, measured REAL NOT NULL) WITHOUT ROWID""",
)
# A claim that was recovered after a loss of the ledger is not counted until the API server has returned its name.
_WITHOUT = "FROM claims WHERE state <> 'recovered' AND uid NOT IN (SELECT claim_uid FROM spans WHERE ended IS NULL)"
_EVERY = "SELECT id, claim_uid, namespace, name, allocation, began, ended FROM spans ORDER BY id"
_UNSEEN = f"SELECT 1 {_WITHOUT} LIMIT 1"
_BEGIN_UNSEEN = (
    "INSERT INTO spans (claim_uid, namespace, name, allocation, began) "
    f"SELECT uid, namespace, name, allocation, ? {_WITHOUT}"
)
_GONE = "SELECT 1 FROM spans WHERE ended IS NULL AND claim_uid NOT IN (SELECT uid FROM main.claims) LIMIT 1"
_END_GONE = (
    "UPDATE spans SET ended = max(began, ?) WHERE ended IS NULL AND claim_uid NOT IN (SELECT uid FROM main.claims)"
)
MAX_SPANS = 20_000  # beyond this, the oldest ended ones are dropped: perhaps nothing adds them up any more


class Span(NamedTuple):
    """The time for which a claim was prepared; `ended` is None while it still is."""

    number: int
    uid: str
    namespace: str
    name: str
    allocation: Wire
    began: float
    ended: float | None


class UsageTotal(NamedTuple):
    """The total under one key, in seconds: allocated, busy, and for how much of it the use was measured."""

    allocated: float = 0.0
    busy: float = 0.0
    measured: float = 0.0

    def plus(self, other: UsageTotal) -> UsageTotal:
        """Return the sum of both."""
        return UsageTotal(self.allocated + other.allocated, self.busy + other.busy, self.measured + other.measured)


class ClaimSpans:
    """The spans and totals of one ledger."""

    def __init__(self, read: LedgerQuery, write: Write) -> None:
        self._read, self._write = read, write

    def every(self) -> tuple[Span, ...]:
        """Return the spans that have not ended, or not been added to the totals yet. Raises: LedgerError."""
        return tuple(map(_span, self._read(_EVERY)))

    def totals(self) -> dict[tuple[str, ...], UsageTotal]:
        """Return the totals by key. Raises: LedgerError."""
        rows = self._read("SELECT * FROM usage_totals")
        return {tuple(json.loads(row["key"])): _TOTAL.read(dict(row)) for row in rows}

    def catch_up(self, now: float) -> None:
        """Begin a span for each claim without one, and end those of claims that are gone. Raises: LedgerError.

        That is needed after an agent that keeps no spans has prepared or unprepared claims.
        """
        for query, statement in ((_UNSEEN, _BEGIN_UNSEEN), (_GONE, _END_GONE)):
            if self._read(query):
                self._execute(statement, now)

    def add(self, more: Mapping[tuple[str, ...], UsageTotal], settled: Collection[int]) -> None:
        """Add `more` to the totals, by key, and remove the spans, by number, that it contains. Raises: LedgerError."""
        sql = (
            "INSERT INTO usage_totals (key, allocated, busy, measured) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
            "SET allocated = allocated + excluded.allocated, busy = busy + excluded.busy, "
            "measured = measured + excluded.measured"
        )
        rows = [(json_text(list(key)), one.allocated, one.busy, one.measured) for key, one in more.items()]

        def job(connection: sqlite3.Connection) -> None:
            connection.executemany(sql, rows)
            connection.executemany("DELETE FROM spans WHERE id = ?", [(number,) for number in settled])

        self._write(job, is_synced=False)

    def _execute(self, sql: str, now: float) -> None:
        self._write(lambda connection: connection.execute(sql, (now,)), is_synced=False)


def begin(connection: sqlite3.Connection, row: Wire) -> None:
    """Begin the span of the claim with a row, unless it has one that has not ended."""
    connection.execute(
        "INSERT INTO spans (claim_uid, namespace, name, allocation, began) SELECT ?, ?, ?, ?, ? "
        "WHERE NOT EXISTS (SELECT 1 FROM spans WHERE claim_uid = ? AND ended IS NULL)",
        (row["uid"], row["namespace"], row["name"], row["allocation"], time.time(), row["uid"]),
    )


def end(connection: sqlite3.Connection, record: ClaimRecord) -> None:
    """End the span of a claim, or remove it if the claim's preparation was never completed."""
    if record.state == ClaimState.PREPARING:
        connection.execute("DELETE FROM spans WHERE claim_uid = ? AND ended IS NULL", (record.uid,))
        return
    done = connection.execute(
        "UPDATE spans SET ended = max(began, ?) WHERE claim_uid = ? AND ended IS NULL", (time.time(), record.uid)
    )
    if done.rowcount:
        connection.execute(
            "DELETE FROM spans WHERE ended IS NOT NULL AND id <= (SELECT max(id) FROM spans) - ?", (MAX_SPANS,)
        )


_TOTAL = RecordForm(UsageTotal)


def _span(row: sqlite3.Row) -> Span:
    number, uid, namespace, name, allocation, began, ended = row
    return Span(number, uid, namespace, name, json.loads(allocation), began, ended)
