"""Spans, in the ledger: the times for which each claim was prepared, and their totals.

In: claims that come and go, in the transactions that record them. Out: spans for the meter of the node, and totals
that outlive the agent. One transaction adds a span that has ended to the totals and removes it, so no second is lost
or counted twice, whenever the agent is killed. Times are seconds of the usage clock; the wall clock's are recorded for
people and for older agents. A span has a random key, because numbers of removed rows come again, and what each of its
devices counts. Nothing is recorded unless `Ledger.keeps_spans` is set.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping

from dra_driver.model.records import RecordForm, json_text
from dra_driver.plugin.ledger.device_effects import LedgerQuery, Write
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState
from dra_driver.plugin.ledger.usage import older_spans
from dra_driver.plugin.ledger.usage.claim_totals import add_claim_totals, drop_oldest
from dra_driver.plugin.ledger.usage.span import SettledSpan, Span, TotalKey, UsageTotal
from dra_driver.plugin.ledger.usage.usage_clock import UsageTime, read_clock, record_time

SCHEMA = (  # since ledger version 1.4; see `older_spans` for the columns that 1.5 has added
    """CREATE TABLE IF NOT EXISTS spans (
        id INTEGER PRIMARY KEY, claim_uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        allocation TEXT NOT NULL, began REAL NOT NULL, ended REAL)""",
    "CREATE INDEX IF NOT EXISTS spans_of_claim ON spans (claim_uid)",
    """CREATE TABLE IF NOT EXISTS usage_totals (
        key TEXT PRIMARY KEY, allocated REAL NOT NULL, busy REAL NOT NULL, measured REAL NOT NULL) WITHOUT ROWID""",
)
_COLUMNS = "claim_uid, namespace, name, allocation, began, began_s, charges, key"
_NEW_KEY = "lower(hex(randomblob(16)))"
_IS_OPEN = "SELECT 1 FROM spans WHERE claim_uid = claims.uid AND ended IS NULL"
_OPEN = "SELECT 1 FROM spans WHERE claim_uid = ? AND ended IS NULL"
_BEGIN = (
    f"INSERT INTO spans ({_COLUMNS}) SELECT uid, namespace, name, allocation, ?, ?, ?, {_NEW_KEY} FROM main.claims "  # noqa: S608
    f"WHERE uid = ? AND NOT EXISTS ({_IS_OPEN})"
)
# A claim that was recovered after a loss of the ledger is not counted until the API server has returned its name.
_BEGIN_UNSEEN = (
    f"INSERT INTO spans ({_COLUMNS}) SELECT uid, namespace, name, allocation, ?, ?, '', {_NEW_KEY} FROM claims "  # noqa: S608
    f"WHERE state NOT IN ('recovered', 'preparing') AND NOT EXISTS ({_IS_OPEN})"
)
_END = "UPDATE spans SET ended = max(began, ?), ended_s = max(began_s, ?) WHERE ended IS NULL AND "
_END_GONE = f"{_END} claim_uid NOT IN (SELECT uid FROM main.claims)"  # noqa: S608
_EVERY = (
    "SELECT id, key, claim_uid, namespace, name, allocation, began_s, ended_s, charges FROM spans "
    "WHERE began_s IS NOT NULL ORDER BY id"
)
_ADD = (
    "INSERT INTO usage_totals (key, allocated, busy, measured) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
    "SET allocated = allocated + excluded.allocated, busy = busy + excluded.busy, "
    "measured = measured + excluded.measured"
)
MAX_SPANS = 20_000  # beyond this, the oldest ended ones are dropped: perhaps nothing adds them up any more


class ClaimSpans:
    """The spans and totals of one ledger, in one boot."""

    def __init__(self, read: LedgerQuery, write: Write, boot_id: str) -> None:
        self._read, self._write, self._boot_id = read, write, boot_id

    def turn(self) -> tuple[UsageTime, tuple[Span, ...]]:
        """Return the time, and the spans that have not ended or not been settled yet. Raises: LedgerError.

        Before that, begin a span for each claim without one, and end those of claims that are gone: an agent that
        keeps no spans may have prepared or unprepared claims.
        """

        def job(connection: sqlite3.Connection) -> tuple[UsageTime, tuple[Span, ...]]:
            time = read_clock(connection, self._boot_id)
            older_spans.adopt(connection, time, self._boot_id)
            connection.execute(_BEGIN_UNSEEN, (time.wall, time.now))
            connection.execute(_END_GONE, (time.wall, time.now))
            return time, tuple(map(_span, connection.execute(_EVERY)))

        return self._write(job, is_synced=False)

    def every(self) -> tuple[Span, ...]:
        """Return the spans that have not ended or not been settled yet. Raises: LedgerError."""
        return tuple(map(_span, self._read(_EVERY)))

    def totals(self) -> dict[TotalKey, UsageTotal]:
        """Return the totals by key. Raises: LedgerError."""
        rows = self._read("SELECT * FROM usage_totals")
        return {tuple(json.loads(row["key"])): _TOTAL.read(dict(row)) for row in rows}

    def settle(
        self,
        time: UsageTime,
        more: Mapping[TotalKey, UsageTotal],
        ended: Collection[SettledSpan],
        new: Collection[Span],
    ) -> dict[TotalKey, UsageTotal]:
        """Add `more` and spans that have ended to the totals, by key, remove these spans, and record the time.

        Record the charges of the spans in `new`. Return what was added: a span that another agent has settled in the
        meantime adds nothing. What is recorded also outlives a power failure, because a counter must never fall.
        Raises: LedgerError.
        """

        def job(connection: sqlite3.Connection) -> dict[TotalKey, UsageTotal]:
            added = dict(more)
            connection.executemany(
                "UPDATE spans SET charges = ? WHERE id = ? AND key = ?", [(s.charges, s.number, s.key) for s in new]
            )
            for span, amounts in ended:
                sql = "DELETE FROM spans WHERE id = ? AND key = ?"
                if connection.execute(sql, (span.number, span.key)).rowcount:
                    for key, seconds in amounts.items():
                        added[key] = added.get(key, UsageTotal()).plus(UsageTotal(allocated=seconds))
                    add_claim_totals(connection, span, amounts)
            if ended:
                drop_oldest(connection)
            connection.executemany(_ADD, [(json_text(list(key)), *total) for key, total in added.items()])
            record_time(connection, time)
            return added

        return self._write(job)


def begin(connection: sqlite3.Connection, uid: str, charges: str, boot_id: str) -> None:
    """Begin the span of a claim that has a row, unless it has one that has not ended."""
    time = read_clock(connection, boot_id)
    connection.execute(_BEGIN, (time.wall, time.now, charges, uid))


def end(connection: sqlite3.Connection, record: ClaimRecord, boot_id: str) -> None:
    """End the span of a claim; that of a preparation that an older agent has not completed is removed."""
    if record.state == ClaimState.PREPARING:
        connection.execute("DELETE FROM spans WHERE claim_uid = ? AND began_s IS NULL", (record.uid,))
    if connection.execute(_OPEN, (record.uid,)).fetchone() is None:
        return
    time = read_clock(connection, boot_id)
    connection.execute(f"{_END} claim_uid = ?", (time.wall, time.now, record.uid))
    connection.execute(
        "DELETE FROM spans WHERE ended IS NOT NULL AND id <= (SELECT max(id) FROM spans) - ?", (MAX_SPANS,)
    )


_TOTAL = RecordForm(UsageTotal)


def _span(row: sqlite3.Row) -> Span:
    number, key, uid, namespace, name, allocation, began, ended, charges = row
    return Span(number, key, uid, namespace, name, json.loads(allocation), began, ended, charges)
