"""Usage clock: the seconds by which hours are counted; they only go forward, whatever is done to the wall clock.

In: the time since boot, the boot id, the wall clock. Out: seconds, kept in the ledger, so that they continue for every
agent of the node. Within a boot they are those of the boot-time clock. From one boot to the next only the wall clock
can tell: its difference counts if it is positive, and at most a day more than the time since boot, because the clock
may have been set in between.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from typing import NamedTuple

from dra_driver.plugin.ledger.unreleased import boot_seconds

SCHEMA = (  # since ledger version 1.5
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
