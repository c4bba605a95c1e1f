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
import time
import uuid
from collections.abc import Collection, Mapping
from typing import NamedTuple

from dra_driver.base.wire import RecordForm, Wire, json_text
from dra_driver.node.ledger.device_effects import LedgerQuery, Write
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, pod_names_of_record
from dra_driver.node.ledger.unreleased import boot_seconds

# Span: the time for which a claim was prepared, and what it adds to which totals.

TotalKey = tuple[str, ...]


class Span(NamedTuple):
    """The time for which a claim was prepared; `ended` is None while it still is.

    `charges` says what its devices count, in the form of the meter; "" if that was not recorded.
    """

    number: int
    key: str
    uid: str
    namespace: str
    name: str
    allocation: Wire
    began: float
    ended: float | None
    charges: str

    def seconds(self, now: float) -> float:
        """Return its length so far."""
        return max(0.0, (now if self.ended is None else self.ended) - self.began)


class UsageTotal(NamedTuple):
    """The total under one key, in seconds: allocated, busy, and for how much of it the use was measured."""

    allocated: float = 0.0
    busy: float = 0.0
    measured: float = 0.0

    def plus(self, other: UsageTotal) -> UsageTotal:
        """Return the sum of both."""
        return UsageTotal(self.allocated + other.allocated, self.busy + other.busy, self.measured + other.measured)


class SettledSpan(NamedTuple):
    """A span that has ended, with what it adds to the totals of claims and of the node, by key."""

    span: Span
    amounts: Mapping[TotalKey, float]


# Claim totals, in the ledger: the hours of claims whose spans were settled.

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


# Usage clock: the seconds by which hours are counted; they only go forward, whatever is done to the wall clock.

USAGE_CLOCK_SCHEMA = (  # since ledger version 1.5
    """CREATE TABLE IF NOT EXISTS usage_clock (
        number INTEGER PRIMARY KEY CHECK (number = 1), ledger TEXT NOT NULL, boot_id TEXT NOT NULL, base REAL NOT NULL,
        seen REAL NOT NULL, wall REAL NOT NULL)""",
)
MAX_OFF_SECONDS = 86_400.0


class UsageTime(NamedTuple):
    """A time by the usage clock, and by the clocks behind it.

    `seen` is the usage time that was recorded last, `ledger` the id of the file that has the clock.
    """

    ledger: str
    now: float
    seen: float
    boot_s: float
    wall: float


def read_clock(connection: sqlite3.Connection, boot_id: str) -> UsageTime:
    """Return the time; in a boot that the ledger does not know yet, record where it begins."""
    boot_s, wall = boot_seconds(), time.time()
    row = connection.execute("SELECT ledger, boot_id, base, seen, wall FROM usage_clock").fetchone()
    if row is None:
        ledger, seen, now = uuid.uuid4().hex, boot_s, boot_s
    else:
        ledger, known_boot, base, seen, wall_then = row
        if known_boot == boot_id and base + boot_s >= seen:
            return UsageTime(ledger, base + boot_s, seen, boot_s, wall)
        now = seen + min(MAX_OFF_SECONDS + boot_s, max(0.0, wall - wall_then))
    connection.execute(
        "INSERT OR REPLACE INTO usage_clock (number, ledger, boot_id, base, seen, wall) VALUES (1, ?, ?, ?, ?, ?)",
        (ledger, boot_id, now - boot_s, now, wall),
    )
    return UsageTime(ledger, now, seen, boot_s, wall)


def record_time(connection: sqlite3.Connection, time: UsageTime) -> None:
    """Record that a time was reached: the next boot begins after it."""
    connection.execute("UPDATE usage_clock SET seen = max(seen, ?), wall = ?", (time.now, time.wall))


# Older spans: rows that agents of ledger version 1.4 write and end, by the wall clock alone.

COLUMNS = {  # since ledger version 1.5
    "key": "TEXT NOT NULL DEFAULT ''",
    "began_s": "REAL",
    "ended_s": "REAL",
    "charges": "TEXT NOT NULL DEFAULT ''",
}
MAX_SECONDS = 366 * 86_400.0
# A claim that is being prepared does not count yet; if that fails, its span is removed.
_UNADOPTED = (
    "SELECT spans.id, spans.began, spans.ended, spans.began_s, claims.boot_id FROM spans "
    "LEFT JOIN main.claims ON claims.uid = spans.claim_uid WHERE (spans.began_s IS NULL "
    "OR (spans.ended IS NOT NULL AND spans.ended_s IS NULL)) AND coalesce(claims.state, '') <> 'preparing'"
)
_FILL = "UPDATE spans SET began_s = ?, ended_s = ?, key = iif(key = '', lower(hex(randomblob(16))), key) WHERE id = ?"


def add_columns(connection: sqlite3.Connection) -> None:
    """Add the columns that this version has and the table of an older minor version lacks."""
    known = {row[1] for row in connection.execute("PRAGMA table_info(spans)")}
    for name, kind in COLUMNS.items():
        if name not in known:
            connection.execute(f"ALTER TABLE spans ADD COLUMN {name} {kind}")


def adopt(connection: sqlite3.Connection, time: UsageTime, boot_id: str) -> None:
    """Fill in the times by the usage clock, and the keys, of rows of older agents."""
    for number, began, ended, known_s, boot_of_claim in connection.execute(_UNADOPTED).fetchall():
        began_s, ended_s = known_s, None
        if ended is not None:
            ended_s = time.now - _within(time.wall - ended, time.now - max(time.seen, known_s or time.seen))
        if known_s is None:
            longest = time.boot_s if boot_of_claim == boot_id else MAX_SECONDS
            length = (time.wall if ended is None else ended) - began
            began_s = (time.now if ended_s is None else ended_s) - _within(length, longest)
        connection.execute(_FILL, (began_s, ended_s, number))


def _within(seconds: float, longest: float) -> float:
    return min(max(0.0, seconds), longest)


SPANS_SCHEMA = (  # since ledger version 1.4; see `older_spans` for the columns that 1.5 has added
    """CREATE TABLE IF NOT EXISTS spans (
        id INTEGER PRIMARY KEY, claim_uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        allocation TEXT NOT NULL, began REAL NOT NULL, ended REAL)""",
    "CREATE INDEX IF NOT EXISTS spans_of_claim ON spans (claim_uid)",
    """CREATE TABLE IF NOT EXISTS usage_totals (
        key TEXT PRIMARY KEY, allocated REAL NOT NULL, busy REAL NOT NULL, measured REAL NOT NULL) WITHOUT ROWID""",
)
_COLUMNS_SPANS = "claim_uid, namespace, name, allocation, began, began_s, charges, key"
_NEW_KEY = "lower(hex(randomblob(16)))"
_IS_OPEN = "SELECT 1 FROM spans WHERE claim_uid = claims.uid AND ended IS NULL"
_OPEN = "SELECT 1 FROM spans WHERE claim_uid = ? AND ended IS NULL"
_BEGIN = (
    f"INSERT INTO spans ({_COLUMNS_SPANS}) SELECT uid, namespace, name, allocation, ?, ?, ?, {_NEW_KEY} "  # noqa: S608
    "FROM main.claims "
    f"WHERE uid = ? AND NOT EXISTS ({_IS_OPEN})"
)
# A claim that was recovered after a loss of the ledger is not counted until the API server has returned its name.
_BEGIN_UNSEEN = (
    f"INSERT INTO spans ({_COLUMNS_SPANS}) SELECT uid, namespace, name, allocation, ?, ?, '', {_NEW_KEY} FROM claims "  # noqa: S608
    f"WHERE state NOT IN ('recovered', 'preparing') AND NOT EXISTS ({_IS_OPEN})"
)
_END = "UPDATE spans SET ended = max(began, ?), ended_s = max(began_s, ?) WHERE ended IS NULL AND "
_END_GONE = f"{_END} claim_uid NOT IN (SELECT uid FROM main.claims)"  # noqa: S608
_EVERY = (
    "SELECT id, key, claim_uid, namespace, name, allocation, began_s, ended_s, charges FROM spans "
    "WHERE began_s IS NOT NULL ORDER BY id"
)
_ADD_SPANS = (
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
            adopt(connection, time, self._boot_id)
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
            connection.executemany(_ADD_SPANS, [(json_text(list(key)), *total) for key, total in added.items()])
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
