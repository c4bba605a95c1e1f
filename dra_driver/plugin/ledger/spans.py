"""Spans, in the ledger: the times for which each claim was prepared, and the totals of them.

In: claims that come and go, in the transactions that record them. Out: spans for the meter of the node, and totals
that outlive the agent. A span that has ended stays until it has been added to the totals, in one transaction with that,
so no second is lost or counted twice whenever the agent is killed. Times are seconds since 1970. Nothing is recorded
unless the ledger is told to keep spans.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dra_driver.model.records import Key, RecordForm, json_text
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
# A claim whose name was lost with the ledger has none to be counted under until the API has said it.
_WITHOUT = "FROM claims WHERE state <> 'recovered' AND uid NOT IN (SELECT claim_uid FROM spans WHERE ended IS NULL)"
_UNSEEN = f"SELECT 1 {_WITHOUT} LIMIT 1"
_BEGIN_UNSEEN = (
    "INSERT INTO spans (claim_uid, namespace, name, allocation, began) "
    f"SELECT uid, namespace, name, allocation, ? {_WITHOUT}"
)
_GONE = "SELECT 1 FROM spans WHERE ended IS NULL AND claim_uid NOT IN (SELECT uid FROM main.claims) LIMIT 1"
_END_GONE = (
    "UPDATE spans SET ended = max(began, ?) WHERE ended IS NULL AND claim_uid NOT IN (SELECT uid FROM main.claims)"
)
MOST_SPANS = 20_000  # if there are more, the oldest ended ones are dropped, in case nothing adds them up


@dataclass(frozen=True, slots=True)
class Span:
    """A claim while it is or was prepared; `ended` is None while it is."""

    number: int
    uid: str
    namespace: str
    name: str
    allocation: Wire
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class UsageTotal:
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
        """Return the spans that last, and those that have ended and were not added up. Raises: LedgerError."""
        return tuple(map(_span, self._read("SELECT * FROM spans ORDER BY id")))

    def totals(self) -> dict[tuple[str, ...], UsageTotal]:
        """Return the totals by key. Raises: LedgerError."""
        rows = self._read("SELECT * FROM usage_totals")
        return {tuple(json.loads(row["key"])): _TOTAL.read(dict(row)) for row in rows}

    def catch_up(self, now: float) -> None:
        """Begin a span for each claim without one, and end those of claims that are gone. Raises: LedgerError.

        An agent that keeps no spans has prepared or unprepared them.
        """
        for question, answer in ((_UNSEEN, _BEGIN_UNSEEN), (_GONE, _END_GONE)):
            if self._read(question):
                self._execute(answer, now)

    def add(self, more: Mapping[tuple[str, ...], UsageTotal], settled: Collection[int]) -> None:
        """Add to the totals, and remove the spans that are in them now. Raises: LedgerError."""
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


def begin(connection: sqlite3.Connection, record: ClaimRecord) -> None:
    """Begin the span of a claim, unless it has one that lasts."""
    connection.execute(
        "INSERT INTO spans (claim_uid, namespace, name, allocation, began) SELECT ?, ?, ?, ?, ? "
        "WHERE NOT EXISTS (SELECT 1 FROM spans WHERE claim_uid = ? AND ended IS NULL)",
        (record.uid, record.namespace, record.name, json_text(record.allocation), time.time(), record.uid),
    )


def end(connection: sqlite3.Connection, record: ClaimRecord) -> None:
    """End the span of a claim; a claim that was never prepared has none."""
    if record.state == ClaimState.PREPARING:
        connection.execute("DELETE FROM spans WHERE claim_uid = ? AND ended IS NULL", (record.uid,))
        return
    done = connection.execute(
        "UPDATE spans SET ended = max(began, ?) WHERE claim_uid = ? AND ended IS NULL", (time.time(), record.uid)
    )
    if done.rowcount:
        connection.execute(
            "DELETE FROM spans WHERE ended IS NOT NULL AND id <= (SELECT max(id) FROM spans) - ?", (MOST_SPANS,)
        )


_SPAN = RecordForm(Span, number=Key("id"), uid=Key("claim_uid"), allocation=Key("allocation", json_text, json.loads))
_TOTAL = RecordForm(UsageTotal)


def _span(row: sqlite3.Row) -> Span:
    return _SPAN.read(dict(row))
