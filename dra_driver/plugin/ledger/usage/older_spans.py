"""Older spans: rows that agents of ledger version 1.4 write and end, by the wall clock alone.

In: the table of spans. Out: the columns of this version, filled in, each once, when a row is first seen. Such an agent
may run beside this one during an upgrade, and after a downgrade. Its times are believed only within what is possible:
a claim that was prepared in this boot is no older than the boot, and no claim is older than a year.
"""

from __future__ import annotations

import sqlite3

from dra_driver.plugin.ledger.usage.usage_clock import UsageTime

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
