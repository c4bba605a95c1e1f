"""Cordons: devices that an administrator took out of use, a part of the state of the node.

In: `dra-driver cordon` and `uncordon`. Out: the cordons that are in force. They survive restarts of the agent and
reboots. While they can't be read, the agent keeps those that it read last. For one minor `cordons.json` has them too.
People may have written that file, so a damaged one is never set aside: they are told, and the last cordons stay.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from dra_driver.base.errors import InputError, LedgerError
from dra_driver.base.names import is_dns_label
from dra_driver.base.telemetry.logs import fields
from dra_driver.node.ledger.state import FILE_NAME as STATE_FILE
from dra_driver.node.ledger.state import Part, StatePart, is_damaged

log = logging.getLogger(__name__)
T = TypeVar("T")

FILE_NAME = "cordons.json"
VERSION = "cordons/v1"
MAX_REASON, MAX_CORDONS = 256, 4096
_MEND = (
    f"the agent mends {STATE_FILE} by itself; mend {FILE_NAME}, or remove it: "
    "the cordons that were read last are in force then"
)
_WRITABLE = "is the agent's data folder on this node, may you write there, and has its disk room?"


@dataclass(frozen=True, slots=True)
class Cordon:
    """One cordon. `device` is the published name of the device, or the name of its GPU.

    Times are seconds since 1970. A cordon without `until` is in force until it is removed.
    """

    device: str
    reason: str
    since: float
    until: float | None = None

    def is_in_force(self, now: float) -> bool:
        """Return whether the cordon is in force at a time."""
        return self.until is None or now < self.until


class CordonFile:
    """The cordons of one node. Several processes may change them at the same time."""

    def __init__(self, folder: Path) -> None:
        self._part = StatePart(folder, _PART)

    def stamp(self) -> Hashable | None:
        """Return a value that is another one after each change; None if a change may not show yet."""
        return self._part.stamp()

    def read(self) -> tuple[Cordon, ...]:
        """Return all cordons, including those that have ended. Raises: InputError("input.cordons")."""
        try:
            return self._part.read(_stored, None) or ()
        except LedgerError as error:
            hint = _MEND if is_damaged(error) else error.hint
            raise InputError("cordons", f"cordons can't be read: {error.message}", hint=hint) from error

    def take_over(self) -> None:
        """Know what an older agent wrote from now on, even if its file is damaged later. Raises: InputError."""
        try:
            self._part.take_over()
        except LedgerError as error:
            raise _not_written(error) from error

    def last_known(self) -> tuple[Cordon, ...] | None:
        """Return the cordons that were in force before the file of older agents was damaged; None if there are none."""
        try:
            return self._part.read(_stored, None, is_older_read=False)
        except LedgerError:
            return None

    def add(self, cordon: Cordon) -> None:
        """Cordon a device. If it is cordoned already, the cordon keeps its start and gets the new reason and end.

        Raises: InputError.
        """

        def changed(cordons: dict[str, Cordon]) -> None:
            for device in [name for name, one in cordons.items() if not one.is_in_force(cordon.since)]:
                del cordons[device]
            since = cordons[cordon.device].since if cordon.device in cordons else cordon.since
            cordons[cordon.device] = Cordon(cordon.device, cordon.reason[:MAX_REASON], since, cordon.until)

        self._change(changed)

    def remove(self, device: str) -> bool:
        """End a device's cordon; return whether there was one. Raises: InputError."""
        return self._change(lambda cordons: cordons.pop(device, None) is not None)

    def _change(self, edit: Callable[[dict[str, Cordon]], T]) -> T:
        def job(connection: sqlite3.Connection) -> T:
            cordons = {one.device: one for one in _stored(connection) or ()}
            result = edit(cordons)
            wire = {"version": VERSION, "cordons": cordons_wire(cordons.values())}
            connection.execute("DELETE FROM cordons")
            connection.execute("INSERT INTO cordons VALUES (?)", (json.dumps(wire, indent=1) + "\n",))
            return result

        try:
            try:
                return self._part.write(job)
            except LedgerError as error:
                if not is_damaged(error) or not self._part.set_aside_state():
                    raise
                return self._part.write(job)
        except LedgerError as error:
            raise _not_written(error) from error


class KnownCordons:
    """The cordons of a node as they were last read; while they can't be read, they stay in force."""

    def __init__(self, file: CordonFile) -> None:
        self._file = file
        self._stamp: Hashable = None
        self.last: tuple[Cordon, ...] | None = None  # as last read, also those that have ended; None if not known
        self.problem = ""

    def refresh(self) -> None:
        """Read the cordons again if they have changed, or could not be read."""
        stamp = self._file.stamp()
        if stamp is not None and stamp == self._stamp and not self.problem:
            return
        try:
            self.last = self._file.read()
            self._file.take_over()
            self._stamp, self.problem = stamp, ""
        except InputError as error:
            if self.last is None:
                self.last = self._file.last_known()
            if str(error) != self.problem:
                log.warning("cordons can't be used, the last known ones are in force", extra=fields(err=str(error)))
            self.problem = str(error)

    def in_force(self, now: float) -> tuple[Cordon, ...]:
        """Return the cordons that are in force at a time."""
        return tuple(one for one in self.last or () if one.is_in_force(now))


def cordons_wire(cordons: Iterable[Cordon]) -> list[dict[str, Any]]:
    """Return cordons as JSON values."""
    return [asdict(one) for one in cordons]


def _not_written(error: LedgerError) -> InputError:
    hint = _MEND if is_damaged(error) else _WRITABLE
    return InputError("cordons", f"cordons can't be written: {error.message}", hint=hint)


def _stored(connection: sqlite3.Connection) -> tuple[Cordon, ...] | None:
    row = connection.execute("SELECT body FROM cordons").fetchone()
    return _cordons(str(row[0])) if row else None


def _cordons(text: str) -> tuple[Cordon, ...]:
    wire = json.loads(text)
    if not isinstance(wire, dict) or wire.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION!r}")
    return tuple(_cordon(one) for one in wire["cordons"][:MAX_CORDONS])


def _cordon(wire: Any) -> Cordon:
    device, reason, until = wire["device"], wire["reason"], wire["until"]
    if not isinstance(device, str) or not is_dns_label(device) or not isinstance(reason, str):
        raise ValueError(f"not a cordon: {wire!r:.100}")
    return Cordon(device, reason[:MAX_REASON], float(wire["since"]), None if until is None else float(until))


_PART = Part("cordons", "cordons-damaged", {"cordons": "body TEXT NOT NULL"}, older=FILE_NAME, check=_cordons)
