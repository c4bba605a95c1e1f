"""Device effects in the ledger: what was done to shared devices, and which claims hold it.

In: effects and their holders. Out: the same, made durable. An effect belongs to a device: it is written before the
first change, and removed together with its last holder after it was undone. A holder whose claim is not in the ledger
does not count. A record of a newer agent that this one can't read is kept.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dra_driver.base.errors import LedgerError
from dra_driver.base.wire import (
    SHARED_DEVICE,
    Key,
    RecordForm,
    SharedDevice,
    Wire,
    json_object,
    record_of_settings,
    settings_of_record,
    strategy_of,
)
from dra_driver.node.ledger.recorded_steps import DeviceEffect, Progress

T = TypeVar("T")

SCHEMA = (  # since ledger version 1.2
    """CREATE TABLE IF NOT EXISTS device_effects (
        device TEXT PRIMARY KEY, kind TEXT NOT NULL, identity TEXT NOT NULL, settings TEXT NOT NULL,
        found TEXT NOT NULL, state TEXT NOT NULL, boot_id TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS effect_holds (
        device TEXT NOT NULL, claim_uid TEXT NOT NULL, PRIMARY KEY (device, claim_uid)) WITHOUT ROWID""",
)


@dataclass(frozen=True, slots=True)
class EffectHolder:
    """A claim for whose sake a device has an effect."""

    uid: str
    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        """Return the claim's namespace, name and UID, for messages."""
        return f"{self.namespace}/{self.name} (UID {self.uid})" if self.name else f"(name unknown, UID {self.uid})"


class LedgerQuery(Protocol):
    """Runs a query on the ledger."""

    def __call__(self, sql: str, values: Iterable[object] = ()) -> list[sqlite3.Row]:
        """Return the rows. Raises: LedgerError."""


class Write(Protocol):
    """Runs a job in a durable transaction on the ledger."""

    def __call__(self, job: Callable[[sqlite3.Connection], T], *, is_synced: bool = True) -> T:
        """Run the job and return its result. Raises: LedgerError."""


class DeviceEffects:
    """The effects in one ledger, by device name."""

    def __init__(self, read: LedgerQuery, write: Write) -> None:
        self._read, self._write = read, write

    def get(self, device: str) -> DeviceEffect | None:
        """Return a device's effect, or None. Raises: LedgerError("ledger.record") if it can't be read."""
        rows = self._read("SELECT * FROM device_effects WHERE device = ?", (device,))
        return _effect_of_row(rows[0]) if rows else None

    def names(self) -> tuple[str, ...]:
        """Return the names of the devices that have an effect."""
        return tuple(row["device"] for row in self._read("SELECT device FROM device_effects ORDER BY device"))

    def uuids(self) -> frozenset[str]:
        """Return the UUIDs of the devices that have an effect, including those of a newer agent.

        Raises: LedgerError("ledger.record") if one can't be read.
        """
        rows = self._read("SELECT device, identity FROM device_effects")
        return frozenset(_read_row(row, lambda columns: _device_of(columns["identity"])).uuid for row in rows)

    def holders(self, device: str) -> tuple[EffectHolder, ...]:
        """Return the claims for whose sake a device has its effect."""
        sql = (
            "SELECT claims.uid, claims.namespace, claims.name FROM effect_holds "
            "JOIN claims ON claims.uid = effect_holds.claim_uid WHERE effect_holds.device = ? ORDER BY claims.uid"
        )
        return tuple(EffectHolder(row["uid"], row["namespace"], row["name"]) for row in self._read(sql, (device,)))

    def begin(self, effect: DeviceEffect, uid: str) -> None:
        """Record an effect that is about to be applied, and the first claim that holds it."""

        def job(connection: sqlite3.Connection) -> None:
            insert_effect(connection, effect)
            insert_hold(connection, effect.device.name, uid)

        self._write(job)

    def set_applied(self, device: str) -> None:
        """Record that a device's effect is in force."""
        sql = "UPDATE device_effects SET state = ? WHERE device = ?"
        self._write(lambda connection: connection.execute(sql, (str(Progress.APPLIED), device)))

    def add_holder(self, device: str, uid: str) -> None:
        """Record one more holder of a device's effect."""
        self._write(lambda connection: insert_hold(connection, device, uid))

    def remove_holder(self, device: str, uid: str) -> None:
        """Remove one of several holders of a device's effect."""
        sql = "DELETE FROM effect_holds WHERE device = ? AND claim_uid = ?"
        self._write(lambda connection: connection.execute(sql, (device, uid)))

    def remove(self, device: str) -> None:
        """Remove an effect that was undone, with all its holders."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM device_effects WHERE device = ?", (device,))
            connection.execute("DELETE FROM effect_holds WHERE device = ?", (device,))

        self._write(job)


def insert_effect(connection: sqlite3.Connection, effect: DeviceEffect) -> None:
    """Write an effect in place of whatever was recorded for the device."""
    row = {"device": effect.device.name, "kind": str(strategy_of(effect.settings)), **_ROW.write(effect)}
    columns, marks = ", ".join(row), ", ".join(f":{column}" for column in row)
    connection.execute(f"INSERT OR REPLACE INTO device_effects ({columns}) VALUES ({marks})", row)  # noqa: S608


def insert_hold(connection: sqlite3.Connection, device: str, uid: str) -> None:
    """Write a claim as a holder of a device's effect."""
    connection.execute("INSERT OR IGNORE INTO effect_holds (device, claim_uid) VALUES (?, ?)", (device, uid))


def insert_recovered(connection: sqlite3.Connection, uid: str, effects: Iterable[DeviceEffect]) -> None:
    """Write the effects in the recovered steps of a claim, and the claim as their holder."""
    for effect in effects:
        insert_effect(connection, effect)
        insert_hold(connection, effect.device.name, uid)


def _effect_of_row(row: sqlite3.Row) -> DeviceEffect:
    return _read_row(row, _ROW.read)


def _read_row(row: sqlite3.Row, read: Callable[[Wire], T]) -> T:
    try:
        return read(dict(row))
    except (KeyError, TypeError, ValueError) as exc:
        raise LedgerError(
            "record",
            f"ledger: the effect on {row['device']} can't be read: {exc}",
            hint="a newer agent may have made it",
        ) from exc


def _device_of(text: str) -> SharedDevice:
    return SHARED_DEVICE.read(json_object(text))


def _text(record: Any) -> str:
    return json.dumps(record, sort_keys=True)


_ROW = RecordForm(
    DeviceEffect,
    device=Key("identity", lambda one: _text(SHARED_DEVICE.write(one)), _device_of),
    settings=Key(
        "settings", lambda one: _text(record_of_settings(one)), lambda text: settings_of_record(json_object(text))
    ),
    found=Key("found", _text, json_object),
    progress=Key("state", str),
)
