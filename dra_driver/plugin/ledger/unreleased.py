"""Unreleased claims, in the ledger: they were unprepared while containers of their pods may still run.

In: rows of claims that are removed. Out: the devices that other claims must wait for. A row is written in the
transaction that removes the claim, so at every moment one or the other protects the devices, and both agents of a node
read it. It counts until `until`, in seconds of boot time, which neither a restart nor a change of the clock affects. It
counts in its own boot only, because no container outlives a boot. The table is called `kept_back` since version 1.3.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dra_driver.model.names import gpu_of_vfio_device, replicated_name, vfio_sibling
from dra_driver.model.records import Key, RecordForm
from dra_driver.plugin.ledger.conflicts import Conflict
from dra_driver.plugin.ledger.device_effects import LedgerQuery, Write
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState

BOUND_SECONDS = 120.0  # a container that can't be killed must not keep a device forever
SCHEMA = (  # since ledger version 1.3
    """CREATE TABLE IF NOT EXISTS kept_back (
        claim_uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, devices TEXT NOT NULL,
        pods TEXT NOT NULL, until REAL NOT NULL, boot_id TEXT NOT NULL) WITHOUT ROWID""",
)
_OF_BOOT = "SELECT * FROM kept_back WHERE boot_id = ? ORDER BY claim_uid"


@dataclass(frozen=True, slots=True)
class UnreleasedClaim:
    """A claim that was unprepared: the devices that it had to itself, and the pods that may still use them."""

    uid: str
    namespace: str
    name: str
    devices: tuple[str, ...]
    pods: tuple[str, ...]
    until: float
    boot_id: str

    @property
    def is_over(self) -> bool:
        """Return whether the time is up, or later than any row of this boot could say."""
        return not 0 < self.until - boot_seconds() <= BOUND_SECONDS

    def record(self) -> ClaimRecord:
        """Return a record that only names the claim."""
        return ClaimRecord(self.uid, self.namespace, self.name, ClaimState.PREPARED, self.boot_id, {}, ())


class UnreleasedClaims:
    """The unreleased claims of one ledger."""

    def __init__(self, read: LedgerQuery, write: Write) -> None:
        self._read, self._write = read, write

    def of_boot(self, boot_id: str) -> tuple[UnreleasedClaim, ...]:
        """Return the claims that were unprepared in a boot, including those whose time is up. Raises: LedgerError."""
        return tuple(map(_unreleased_of_row, self._read(_OF_BOOT, (boot_id,))))

    def has_any(self) -> bool:
        """Return whether any device is unreleased now. Raises: LedgerError."""
        return any(not _unreleased_of_row(row).is_over for row in self._read("SELECT * FROM kept_back"))

    def forget(self, kept: Iterable[UnreleasedClaim]) -> None:
        """Release the devices of claims, unless a claim has been unprepared again since. Raises: LedgerError."""
        sql = "DELETE FROM kept_back WHERE claim_uid = ? AND until = ?"
        values = [(each.uid, each.until) for each in kept]
        self._write(lambda connection: connection.executemany(sql, values), is_synced=False)


def boot_seconds() -> float:
    """Return the seconds since boot, including suspended time; changes of the wall clock don't affect it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keep_unreleased(connection: sqlite3.Connection, record: ClaimRecord, pods: Collection[str], boot_id: str) -> None:
    """Record the devices of a claim as unreleased, before its holds are removed. Shares and replicas are left out."""
    exclusive = record.exclusive_names() if pods else ()
    if not exclusive:
        return
    connection.execute("DELETE FROM kept_back WHERE boot_id <> ?", (boot_id,))
    rows = connection.execute("SELECT device FROM holds WHERE claim_uid = ? AND share_id = ''", (record.uid,))
    held = (row["device"] for row in rows)
    devices = {*exclusive, *(name for name in held if "/" in name and not replicated_name(name))}
    before = connection.execute("SELECT * FROM kept_back WHERE claim_uid = ?", (record.uid,))
    for kept in map(_unreleased_of_row, before.fetchall()):
        devices.update(kept.devices)
        pods = {*pods, *kept.pods}
    until = boot_seconds() + BOUND_SECONDS
    claim = UnreleasedClaim(record.uid, record.namespace, record.name, tuple(devices), tuple(pods), until, boot_id)
    connection.execute(_INSERT, _ROW.write(claim))


def unreleased_conflicts(
    rows: Collection[sqlite3.Row], uid: str, wanted: Iterable[tuple[str, str]]
) -> tuple[Conflict, ...]:
    """Return the conflicts between what the claim `uid` requests and `rows` of unreleased claims of this boot."""
    if not rows:
        return ()
    names = {name for name, _ in wanted}
    passed = {gpu for gpu in map(gpu_of_vfio_device, names) if gpu}
    names |= {name for each in (replicated_name, vfio_sibling) for name in map(each, names) if name} | passed
    of_passed = tuple(f"{gpu}-" for gpu in passed)
    kept = (each for each in map(_unreleased_of_row, rows) if each.uid != uid and not each.is_over)
    return tuple(
        Conflict(name, each.record(), each.pods)
        for each in kept
        for name in sorted(each.devices)
        if name in names or name.startswith(of_passed)
    )


def unreleased_query(boot_id: str) -> tuple[str, tuple[str, ...]]:
    """Return the query for the unreleased claims of a boot, and its values."""
    return _OF_BOOT, (boot_id,)


def _names_text(names: Collection[str]) -> str:
    return json.dumps(sorted(names))


def _names_of_text(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


_ROW = RecordForm(
    UnreleasedClaim,
    uid=Key("claim_uid"),
    devices=Key("devices", _names_text, _names_of_text),
    pods=Key("pods", _names_text, _names_of_text),
)
_INSERT = (
    "INSERT OR REPLACE INTO kept_back (claim_uid, namespace, name, devices, pods, until, boot_id) "
    "VALUES (:claim_uid, :namespace, :name, :devices, :pods, :until, :boot_id)"
)


def _unreleased_of_row(row: sqlite3.Row) -> UnreleasedClaim:
    return _ROW.read(dict(row))
