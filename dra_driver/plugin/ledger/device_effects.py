"""Device effects in the ledger: what was done to shared devices, and which claims hold it.

In: effects and holders. Out: the same, durable. An effect belongs to the device: it is written before the first change,
and removed together with its last hold after it was undone. A holder that the ledger does not know as a claim holds
nothing. A record of a newer agent that this one can't read is kept.
"""

from __future__ import annotations

import enum
import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from dra_driver.model.errors import LedgerError
from dra_driver.model.sharing import (
    SharedDevice,
    SharingSettings,
    record_of_settings,
    settings_of_record,
    strategy_of,
)
from dra_driver.model.wire import Wire

T = TypeVar("T")

SCHEMA = (  # since ledger version 1.2
    """CREATE TABLE IF NOT EXISTS device_effects (
        device TEXT PRIMARY KEY, kind TEXT NOT NULL, identity TEXT NOT NULL, settings TEXT NOT NULL,
        found TEXT NOT NULL, state TEXT NOT NULL, boot_id TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS effect_holds (
        device TEXT NOT NULL, claim_uid TEXT NOT NULL, PRIMARY KEY (device, claim_uid)) WITHOUT ROWID""",
)


class Progress(enum.StrEnum):
    """How far an effect has been applied. One that is APPLYING may or may not be in force."""

    APPLYING = "applying"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class DeviceEffect:
    """What was done to a device, in which boot, and what was found there before."""

    device: SharedDevice
    settings: SharingSettings
    found: Wire
    boot_id: str
    progress: str = Progress.APPLYING

    def record(self) -> Wire:
        """Return the effect as a JSON object."""
        return {
            "device": asdict(self.device),
            "settings": record_of_settings(self.settings),
            "found": self.found,
            "bootId": self.boot_id,
        }


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that holds an effect."""

    uid: str
    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        """Return the claim's name as people write it."""
        return f"{self.namespace}/{self.name} (UID {self.uid})" if self.name else f"(name unknown, UID {self.uid})"


def effect_of_record(record: Wire) -> DeviceEffect:
    """Return the effect that `DeviceEffect.record` wrote; keys that a newer agent added are ignored.

    Raises: KeyError, TypeError, ValueError for anything else.
    """
    device = record["device"]
    return DeviceEffect(
        device=SharedDevice(**{name: device[name] for name in SharedDevice.__slots__}),
        settings=settings_of_record(record["settings"]),
        found=record["found"],
        boot_id=record["bootId"],
    )


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
        """Return a device's effect. Raises: LedgerError("ledger.record") for one that can't be read."""
        rows = self._read("SELECT * FROM device_effects WHERE device = ?", (device,))
        return _effect_of_row(rows[0]) if rows else None

    def names(self) -> tuple[str, ...]:
        """Return the names of the devices that have an effect."""
        return tuple(row["device"] for row in self._read("SELECT device FROM device_effects ORDER BY device"))

    def uuids(self) -> frozenset[str]:
        """Return the UUIDs of the devices that have an effect, including those of a newer agent."""
        found: set[str] = set()
        for row in self._read("SELECT identity FROM device_effects"):
            identity: dict[str, Any] = json.loads(row["identity"])
            found.add(identity.get("mig_uuid") or identity["gpu_uuid"])
        return frozenset(found)

    def holders(self, device: str) -> tuple[Holder, ...]:
        """Return the claims that hold a device's effect."""
        sql = (
            "SELECT claims.uid, claims.namespace, claims.name FROM effect_holds "
            "JOIN claims ON claims.uid = effect_holds.claim_uid WHERE effect_holds.device = ? ORDER BY claims.uid"
        )
        return tuple(Holder(row["uid"], row["namespace"], row["name"]) for row in self._read(sql, (device,)))

    def begin(self, effect: DeviceEffect, uid: str) -> None:
        """Record what is about to be done, and which claim holds it."""

        def job(connection: sqlite3.Connection) -> None:
            insert_effect(connection, effect)
            insert_hold(connection, effect.device.name, uid)

        self._write(job)

    def applied(self, device: str) -> None:
        """Record that the effect is in force."""
        sql = "UPDATE device_effects SET state = ? WHERE device = ?"
        self._write(lambda connection: connection.execute(sql, (str(Progress.APPLIED), device)))

    def join(self, device: str, uid: str) -> None:
        """Record one more holder."""
        self._write(lambda connection: insert_hold(connection, device, uid))

    def let_go(self, device: str, uid: str) -> None:
        """Remove one of several holders."""
        sql = "DELETE FROM effect_holds WHERE device = ? AND claim_uid = ?"
        self._write(lambda connection: connection.execute(sql, (device, uid)))

    def end(self, device: str) -> None:
        """Remove an effect that was undone, with all its holds."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM device_effects WHERE device = ?", (device,))
            connection.execute("DELETE FROM effect_holds WHERE device = ?", (device,))

        self._write(job)


def insert_effect(connection: sqlite3.Connection, effect: DeviceEffect) -> None:
    """Write an effect, replacing whatever was recorded for the device."""
    record = effect.record()
    connection.execute(
        "INSERT OR REPLACE INTO device_effects (device, kind, identity, settings, found, state, boot_id) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            effect.device.name,
            str(strategy_of(effect.settings)),
            json.dumps(record["device"], sort_keys=True),
            json.dumps(record["settings"], sort_keys=True),
            json.dumps(record["found"], sort_keys=True),
            str(effect.progress),
            effect.boot_id,
        ),
    )


def insert_hold(connection: sqlite3.Connection, device: str, uid: str) -> None:
    """Write that a claim holds a device's effect."""
    connection.execute("INSERT OR IGNORE INTO effect_holds (device, claim_uid) VALUES (?, ?)", (device, uid))


def insert_recovered(connection: sqlite3.Connection, uid: str, steps: Iterable[Wire]) -> None:
    """Write the effects that the recovered steps of a claim contain, and that the claim holds them."""
    for step in steps:
        if "effect" in step:
            effect = effect_of_record(step["effect"])
            insert_effect(connection, effect)
            insert_hold(connection, effect.device.name, uid)


def _effect_of_row(row: sqlite3.Row) -> DeviceEffect:
    try:
        effect = effect_of_record(
            {
                "device": json.loads(row["identity"]),
                "settings": json.loads(row["settings"]),
                "found": json.loads(row["found"]),
                "bootId": row["boot_id"],
            }
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise LedgerError(
            "record",
            f"ledger: the effect on {row['device']} can't be read: {exc}",
            hint="a newer agent may have made it",
        ) from exc
    return DeviceEffect(effect.device, effect.settings, effect.found, effect.boot_id, row["state"])
