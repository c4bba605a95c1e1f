"""Unreleased claims, in the ledger: they were unprepared while containers of their pods may still run.

In: rows of claims that are removed. Out: the devices that other claims must wait for. A row is written in the
transaction that removes the claim, so at every moment one or the other protects the devices, and both agents of a node
read it. It counts until `until`, in seconds of boot time, which neither a restart nor a change of the clock affects;
with `nodes`, until it is removed, because only a look at the processes can show that no device node is open any more.
It counts in its own boot only, because no container outlives a boot. The table is called `kept_back` since version 1.3;
the nodes are in a table of their own, `kept_nodes`, since version 1.5.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from dra_driver.model.names import replicated_name
from dra_driver.model.records import Key, RecordForm
from dra_driver.plugin.ledger.conflicts import Conflict, names_in_conflict
from dra_driver.plugin.ledger.device_effects import LedgerQuery, Write
from dra_driver.plugin.ledger.record import ClaimRecord, ClaimState

BOUND_SECONDS = 120.0  # a container that can't be killed must not keep a device forever
SCHEMA = (  # since ledger version 1.3
    """CREATE TABLE IF NOT EXISTS kept_back (
        claim_uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, devices TEXT NOT NULL,
        pods TEXT NOT NULL, until REAL NOT NULL, boot_id TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS kept_nodes (
        claim_uid TEXT PRIMARY KEY, boot_id TEXT NOT NULL, nodes TEXT NOT NULL, users TEXT NOT NULL DEFAULT '[]')
        WITHOUT ROWID""",
)
_OF_BOOT = (
    "SELECT kept_back.*, nodes, users FROM kept_back LEFT JOIN kept_nodes USING (claim_uid, boot_id) "
    "WHERE boot_id = ? ORDER BY claim_uid"
)


@dataclass(frozen=True, slots=True)
class UnreleasedClaim:
    """A claim that was unprepared: the devices that it had to itself, and the pods that may still use them.

    `nodes` are the numbers of the device nodes that belong to these devices alone; `users` says which processes had one
    of them open when they were looked at last.
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[str, ...]
    pods: tuple[str, ...]
    until: float
    boot_id: str
    nodes: tuple[int, ...] = ()
    users: tuple[str, ...] = ()

    @property
    def is_in_force(self) -> bool:
        """Return whether other claims have to wait for the devices."""
        return bool(self.nodes) or not self.is_over

    @property
    def is_over(self) -> bool:
        """Return whether the time is up, or later than any row of this boot could say."""
        return not 0 < self.until - boot_seconds() <= BOUND_SECONDS

    def record(self) -> ClaimRecord:
        """Return a record that only names the claim."""
        return ClaimRecord(self.uid, self.namespace, self.name, ClaimState.PREPARED, self.boot_id, {}, ())


class UnreleasedClaims:
    """The unreleased claims of one ledger."""

    def __init__(self, read: LedgerQuery, write: Write, boot_id: str) -> None:
        self._read, self._write, self._boot_id = read, write, boot_id

    def of_boot(self, boot_id: str) -> tuple[UnreleasedClaim, ...]:
        """Return the claims that were unprepared in a boot, including those whose time is up. Raises: LedgerError."""
        return tuple(map(_unreleased_of_row, self._read(_OF_BOOT, (boot_id,))))

    def has_any(self) -> bool:
        """Return whether any device is unreleased now. Raises: LedgerError."""
        return any(each.is_in_force for each in self.of_boot(self._boot_id))

    def forget(self, kept: Iterable[UnreleasedClaim]) -> None:
        """Release the devices of claims, unless a claim has been unprepared again since. Raises: LedgerError."""
        values = [(each.uid, each.until) for each in kept]

        def job(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM kept_back WHERE claim_uid = ? AND until = ?", values)
            for uid, _ in values:
                forget_noted(connection, uid)

        self._write(job, is_synced=False)

    def set_users(self, kept: UnreleasedClaim, users: Collection[str]) -> None:
        """Record which processes have a node of an unreleased claim open. Raises: LedgerError."""
        sql = "UPDATE kept_nodes SET users = ? WHERE claim_uid = ?"
        self._write(lambda connection: connection.execute(sql, (_names_text(users), kept.uid)), is_synced=False)

    def noted_nodes(self, uid: str, boot_id: str) -> tuple[int, ...]:
        """Return the nodes that were recorded of a claim whose undoing has begun. Raises: LedgerError."""
        rows = self._read("SELECT nodes FROM kept_nodes WHERE claim_uid = ? AND boot_id = ?", (uid, boot_id))
        return tuple(node for row in rows for node in _numbers_of_text(row["nodes"]))

    def note_nodes(self, uid: str, boot_id: str, nodes: Collection[int]) -> None:
        """Record the nodes of a claim before its file, which names them, is removed. Raises: LedgerError."""
        self._write(lambda connection: _put_nodes(connection, uid, boot_id, nodes), is_synced=False)


def boot_seconds() -> float:
    """Return the seconds since boot, including suspended time; changes of the wall clock don't affect it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keep_unreleased(
    connection: sqlite3.Connection, record: ClaimRecord, pods: Collection[str], boot_id: str, nodes: Collection[int]
) -> None:
    """Record the devices of a claim as unreleased, before its holds are removed. Shares and replicas are left out.

    `pods` may still run, and containers of others may have `nodes`; if both are empty, the devices are free.
    """
    exclusive = record.exclusive_names() if pods or nodes else ()
    if not exclusive:
        return
    for table in ("kept_back", "kept_nodes"):
        connection.execute(f"DELETE FROM {table} WHERE boot_id <> ?", (boot_id,))  # noqa: S608
    rows = connection.execute("SELECT device FROM holds WHERE claim_uid = ? AND share_id = ''", (record.uid,))
    held = (row["device"] for row in rows)
    devices = {*exclusive, *(name for name in held if "/" in name and not replicated_name(name))}
    for kept in map(_unreleased_of_row, connection.execute(_OF_BOOT, (boot_id,)).fetchall()):
        if kept.uid == record.uid:
            devices.update(kept.devices)
            pods, nodes = {*pods, *kept.pods}, {*nodes, *kept.nodes}
    until = boot_seconds() + BOUND_SECONDS
    claim = UnreleasedClaim(record.uid, record.namespace, record.name, tuple(devices), tuple(pods), until, boot_id)
    connection.execute(_INSERT, _ROW.write(claim))
    _put_nodes(connection, record.uid, boot_id, nodes)


def forget_noted(connection: sqlite3.Connection, uid: str) -> None:
    """Remove the nodes that were recorded of a claim, unless its devices are unreleased."""
    sql = "DELETE FROM kept_nodes WHERE claim_uid = ? AND claim_uid NOT IN (SELECT claim_uid FROM kept_back)"
    connection.execute(sql, (uid,))


def _put_nodes(connection: sqlite3.Connection, uid: str, boot_id: str, nodes: Collection[int]) -> None:
    sql = "INSERT OR REPLACE INTO kept_nodes (claim_uid, boot_id, nodes) VALUES (?, ?, ?)"
    connection.execute(sql, (uid, boot_id, json.dumps(sorted(nodes))))


def unreleased_conflicts(
    rows: Collection[sqlite3.Row], uid: str, wanted: Iterable[tuple[str, str]]
) -> tuple[Conflict, ...]:
    """Return the conflicts between what the claim `uid` requests and `rows` of unreleased claims of this boot."""
    if not rows:
        return ()
    names, prefixes = names_in_conflict({name for name, _ in wanted})
    kept = (each for each in map(_unreleased_of_row, rows) if each.uid != uid and each.is_in_force)
    return tuple(
        Conflict(name, each.record(), each.pods, is_unprepared=True, users=each.users)
        for each in kept
        for name in sorted(each.devices)
        if name in names or name.startswith(prefixes)
    )


def unreleased_query(boot_id: str) -> tuple[str, tuple[str, ...]]:
    """Return the query for the unreleased claims of a boot, and its values."""
    return _OF_BOOT, (boot_id,)


def _names_text(names: Collection[str]) -> str:
    return json.dumps(sorted(names))


def _names_of_text(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _numbers_of_text(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, json.loads(text or "[]")))


_ROW = RecordForm(
    UnreleasedClaim,
    without=("nodes", "users"),
    uid=Key("claim_uid"),
    devices=Key("devices", _names_text, _names_of_text),
    pods=Key("pods", _names_text, _names_of_text),
)
_INSERT = (
    "INSERT OR REPLACE INTO kept_back (claim_uid, namespace, name, devices, pods, until, boot_id) "
    "VALUES (:claim_uid, :namespace, :name, :devices, :pods, :until, :boot_id)"
)


def _unreleased_of_row(row: sqlite3.Row) -> UnreleasedClaim:
    kept = _ROW.read(dict(row))
    return replace(kept, nodes=_numbers_of_text(row["nodes"]), users=_names_of_text(row["users"] or "[]"))
