"""Unreleased claims, in the ledger: they were unprepared while containers of their pods may still run.

In: rows of claims that are removed. Out: the devices that other claims must wait for. A row is written in the
transaction that removes the claim, so at every moment one or the other protects the devices, and both agents of a node
read it. It counts until `until`, in seconds of boot time, which neither a restart nor a change of the clock affects;
with `nodes`, until it is removed, because only a look at the processes can show that no device node is open any more.
It counts in its own boot only, because no container outlives a boot. The table is called `kept_back` since version 1.3;
the nodes are in a table of their own, `kept_nodes`, since version 1.5. A device of which the claim had a share or a
replica is recorded under a name like that of a replica that is never offered: only claims that exclude all replicas of
the device wait for it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from dra_driver.base.names import replicated_name, taken_gpu, vfio_sibling, whole_sibling
from dra_driver.base.wire import Key, RecordForm
from dra_driver.node.claims.allocated import AllocatedClaim
from dra_driver.node.ledger.device_effects import LedgerQuery, Write
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_row

# Conflicts: what a claim is to hold, and which other claims already hold it.


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another claim that holds a wanted device, or that held it until it was unprepared.

    Of the latter, `pods` may still run, and `users` are processes that still have the device open, in words.
    """

    device: str
    record: ClaimRecord
    pods: tuple[str, ...] = ()
    is_unprepared: bool = False
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold of a claim in a namespace: on a device, on a share by its id, or on a part of a GPU ("gpu/part")."""

    device: str
    share_id: str
    namespace: str

    @property
    def is_part(self) -> bool:
        """Return whether this is a part of a GPU, which the claim holds because a device that it owns lies there."""
        return "/" in self.device

    @property
    def shared_device(self) -> str | None:
        """The device of which this is a share or a replica; None for a device that the claim has to itself."""
        return _shared_device(self.device, self.share_id)


def _shared_device(device: str, share_id: str) -> str | None:
    return device if share_id else replicated_name(device)


def wanted_of(claim: AllocatedClaim, occupied: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return what a claim is to hold: devices with their share ids, and parts of GPUs.

    Admin access never means ownership.
    """
    devices = [(device.device, device.share_id or "") for device in claim.devices if not device.is_admin]
    return (*devices, *[(name, "") for name in occupied])


def conflicts_query(uid: str, wanted: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...]]:
    """Return the query for the holders of what is wanted, and its values.

    A replica also conflicts with the device itself, and a device with its replicas. A whole GPU, for containers or for
    a virtual machine, conflicts with everything that others may have of that GPU, whatever the GPU is offered as now:
    it may have been partitioned since the other claim was allocated.
    """
    names, prefixes = names_in_conflict({device for device, _ in wanted})
    bounds = [(prefix, f"{prefix}~") for prefix in prefixes]
    return _conflicts_sql(len(names), len(bounds)), (*names, *(bound for pair in bounds for bound in pair), uid)


def _conflicts_sql(names: int, ranges: int) -> str:
    """Return the query for a number of names and a number of ranges of names."""
    marks = ", ".join(["?"] * names)
    between = " ".join(["OR holds.device BETWEEN ? AND ?"] * ranges)
    return (
        "SELECT holds.device, holds.share_id, claims.* FROM holds JOIN claims ON claims.uid = holds.claim_uid "  # noqa: S608
        f"WHERE (holds.device IN ({marks}) {between}) AND holds.claim_uid <> ?"
    )


def names_in_conflict(devices: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that conflict with these devices and parts of GPUs, and the prefixes of further such names."""
    relations = (replicated_name, vfio_sibling, whole_sibling)
    related = {name for device in devices for relation in relations if (name := relation(device))}
    taken = {gpu for gpu in map(taken_gpu, devices) if gpu}
    prefixes = {f"{device}-share-" for device in devices if "/" not in device} | {f"{gpu}-" for gpu in taken}
    for device in devices:
        if whole := whole_sibling(device):  # replicas of the whole GPU and parts of it exclude each other, too
            prefixes.add(f"{whole}-mig-" if replicated_name(device) == whole else f"{whole}-share-")
    return tuple(sorted({*devices, *related, *taken})), tuple(sorted(prefixes))


def replica_bounds(device: str) -> tuple[str, str]:
    """Return the bounds between which the names of a device's replicas lie."""
    return f"{device}-share-", f"{device}-share-~"


def conflicts_of(rows: list[sqlite3.Row], wanted: tuple[tuple[str, str], ...]) -> tuple[Conflict, ...]:
    """Return the conflicts among the rows of `conflicts_query`; two shares of one device don't conflict."""
    if not rows:  # most claims' devices are free
        return ()
    shares = {device for device, share_id in wanted if share_id}
    return tuple(
        Conflict(row["device"], record_of_row(row))
        for row in rows
        if not row["share_id"] or row["device"] not in shares
    )


def by_holder(conflicts: Iterable[Conflict]) -> tuple[tuple[str, Conflict], ...]:
    """Return each holder once, with a description of what it holds.

    Slices of a GPU are listed only where the GPU itself is not.
    """
    groups: dict[tuple[str, bool, tuple[str, ...]], list[Conflict]] = {}
    for conflict in conflicts:
        groups.setdefault((conflict.record.uid, conflict.is_unprepared, conflict.pods), []).append(conflict)
    return tuple(
        sorted(((_in_words({r.device for r in group}), group[0]) for group in groups.values()), key=itemgetter(0))
    )


def _in_words(names: set[str]) -> str:
    devices = sorted(name for name in names if "/" not in name)
    parts: dict[str, list[str]] = {}
    for gpu, _, part in (name.partition("/") for name in sorted(names, key=lambda name: (len(name), name))):
        if part and gpu not in devices:
            parts.setdefault(gpu, []).append(part)
    return ", ".join([*devices, *(f"{gpu} ({', '.join(found)})" for gpu, found in sorted(parts.items()))])


_ANY_REPLICA = "-share-~"  # after the name of a device of which an unreleased claim had shares or replicas
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
    """A claim that was unprepared: the devices that it had, as recorded, and the pods that may still use them.

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
    def names(self) -> tuple[str, ...]:
        """Return the names of the devices, without the parts of GPUs that they occupy."""
        return tuple(dict.fromkeys(_real_name(name) for name in self.devices if "/" not in name))

    @property
    def shared_names(self) -> frozenset[str]:
        """Return the names of the devices of which the claim had shares or replicas."""
        return frozenset(_real_name(name) for name in self.devices if name.endswith(_ANY_REPLICA))

    @property
    def is_in_force(self) -> bool:
        """Return whether other claims have to wait for the devices."""
        return bool(self.nodes) or not self.is_over

    @property
    def is_over(self) -> bool:
        """Return whether the time is up, or later than any row of this boot could say."""
        return not 0 < self.until - boot_seconds() <= BOUND_SECONDS

    @property
    def reason(self) -> str:
        """Return why the devices are not released, as one clause."""
        if self.users:
            return f"it is open in {', '.join(self.users)}"
        if self.pods:
            return f"containers of pod {', '.join(self.pods)} may still run"
        return "a container may still have it"

    def record(self) -> ClaimRecord:
        """Return a record that only names the claim."""
        return ClaimRecord(self.uid, self.namespace, self.name, ClaimState.PREPARED, self.boot_id, {}, ())


class UnreleasedClaims:
    """The unreleased claims of one ledger."""

    def __init__(self, read: LedgerQuery, write: Write, boot_id: str) -> None:
        self._read, self._write, self._boot_id = read, write, boot_id

    def of_boot(self, boot_id: str) -> tuple[UnreleasedClaim, ...]:
        """Return the claims that were unprepared in a boot, including those whose time is up. Raises: LedgerError."""
        return tuple(map(unreleased_of_row, self._read(_OF_BOOT, (boot_id,))))

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
    """Record the devices of a claim as unreleased, before its holds are removed.

    `pods` may still run, and containers of others may have `nodes`; if both are empty, the devices are free.
    """
    owned = record.owned() if pods or nodes else ()
    if not owned:
        return
    for table in ("kept_back", "kept_nodes"):
        connection.execute(f"DELETE FROM {table} WHERE boot_id <> ?", (boot_id,))  # noqa: S608
    rows = connection.execute("SELECT device FROM holds WHERE claim_uid = ? AND share_id = ''", (record.uid,))
    held = (row["device"] for row in rows)
    devices = {name for name in held if "/" in name and not replicated_name(name)}
    for name, share_id in owned:
        shared = _shared_device(name, share_id)
        devices.add(f"{shared}{_ANY_REPLICA}" if shared else name)
    for kept in map(unreleased_of_row, connection.execute(_OF_BOOT, (boot_id,)).fetchall()):
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
    rows: Collection[sqlite3.Row], uid: str, wanted: Collection[tuple[str, str]]
) -> tuple[Conflict, ...]:
    """Return the conflicts between what the claim `uid` requests and `rows` of unreleased claims of this boot."""
    if not rows:
        return ()
    names, prefixes = names_in_conflict({name for name, _ in wanted})
    shared = {f"{name}{_ANY_REPLICA}" for name, share_id in wanted if share_id}
    kept = (each for each in map(unreleased_of_row, rows) if each.uid != uid and each.is_in_force)
    return tuple(
        Conflict(_real_name(name), each.record(), each.pods, is_unprepared=True, users=each.users)
        for each in kept
        for name in sorted(each.devices)
        if name not in shared and (name in names or name.startswith(prefixes))
    )


def _real_name(recorded: str) -> str:
    return recorded.removesuffix(_ANY_REPLICA)


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


def unreleased_of_row(row: sqlite3.Row) -> UnreleasedClaim:
    """Return the claim in a row of `unreleased_query`."""
    kept = _ROW.read(dict(row))
    return replace(kept, nodes=_numbers_of_text(row["nodes"]), users=_names_of_text(row["users"] or "[]"))
