"""Conflicts: what a claim is to hold, and which other claims already hold it.

Pure: names, SQL and rows come in; names, SQL and conflicts go out. The ledger runs the SQL in its own transaction.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from dra_driver.claims.allocated.allocated_claim import AllocatedClaim
from dra_driver.model.names import replicated_name, taken_gpu, vfio_sibling, whole_sibling
from dra_driver.plugin.ledger.record import ClaimRecord, record_of_row


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
        return self.device if self.share_id else replicated_name(self.device)


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
    sql, values = _holders_query(wanted)
    return sql, (*values, uid)


@functools.lru_cache(maxsize=64)  # claims want the same few devices again and again
def _holders_query(wanted: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...]]:
    """Return the query of `conflicts_query`, and its values without the last one: the UID of the wanting claim."""
    names, prefixes = names_in_conflict({device for device, _ in wanted})
    bounds = [(prefix, f"{prefix}~") for prefix in prefixes]
    return _conflicts_sql(len(names), len(bounds)), (*names, *(one for pair in bounds for one in pair))


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
