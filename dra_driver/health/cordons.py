"""Cordons: devices that an administrator took out of use, in a file on the node.

In: `dra-driver cordon` and `uncordon`. Out: the cordons that are in force. The file survives restarts of the agent and
reboots. While the file can't be read, the agent keeps the cordons that it read last, which the health store has too. A
file that people write is never set aside: they are told, and repair it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.names import is_dns_label
from dra_driver.model.stamp import stamp_of
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FILE_NAME = "cordons.json"
VERSION = "cordons/v1"
MAX_REASON, MAX_CORDONS, MAX_BYTES = 256, 4096, 1 << 20


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
    """The cordons of one node. Several processes may change it at the same time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def fingerprint(self) -> Hashable:
        """Return a value that differs after every change of the file."""
        return stamp_of(self._path)

    def read(self) -> tuple[Cordon, ...]:
        """Return all cordons, including those that have ended. Raises: InputError("input.cordons")."""
        try:
            text = self._path.read_bytes()[: MAX_BYTES + 1]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise InputError("cordons", f"{self._path} can't be read: {error.strerror}") from error
        try:
            return _cordons(json.loads(text) if len(text) <= MAX_BYTES else None)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            message = f"{self._path} is not a file of cordons: {error}"
            raise InputError("cordons", message, hint="remove it and cordon the devices again") from error

    def add(self, cordon: Cordon) -> None:
        """Cordon a device. If it is cordoned already, the cordon keeps its start and gets the new reason and end."""

        def changed(cordons: Iterable[Cordon]) -> list[Cordon]:
            known = {one.device: one for one in cordons if one.is_in_force(cordon.since)}
            since = known[cordon.device].since if cordon.device in known else cordon.since
            known[cordon.device] = Cordon(cordon.device, cordon.reason[:MAX_REASON], since, cordon.until)
            return list(known.values())

        self._change(changed)

    def remove(self, device: str) -> bool:
        """End a device's cordon; return whether there was one. Raises: InputError."""
        was_there = any(one.device == device for one in self.read())
        self._change(lambda cordons: [one for one in cordons if one.device != device])
        return was_there

    def _change(self, edit: Callable[[Iterable[Cordon]], list[Cordon]]) -> None:
        try:
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                wire = {"version": VERSION, "cordons": cordons_wire(edit(self.read()))}
                new = self._path.with_suffix(".new")
                with new.open("w", encoding="utf-8") as file:
                    file.write(json.dumps(wire, indent=1) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self._path)
        except OSError as error:
            hint = "is the agent's data folder on this node, and may you write there?"
            raise InputError("cordons", f"{self._path} can't be written: {error.strerror}", hint=hint) from error


class KnownCordons:
    """The cordons of a file as they were last read; while the file can't be read, they stay in force."""

    def __init__(self, file: CordonFile) -> None:
        self._file = file
        self._stamp: Hashable = None
        self.last: tuple[Cordon, ...] | None = None  # as last read, also those that have ended; None if not known
        self.problem = ""

    def remember(self, cordons: tuple[Cordon, ...] | None) -> None:
        """Take the cordons that an earlier agent read last, unless the file could be read."""
        if self.last is None:
            self.last = cordons

    def refresh(self) -> None:
        """Read the file again if it has changed, or could not be read."""
        stamp = self._file.fingerprint()
        if stamp == self._stamp and self.last is not None and not self.problem:
            return
        try:
            self.last, self.problem = self._file.read(), ""
        except InputError as error:
            if str(error) != self.problem:
                log.warning("cordons can't be read, the last known ones stay in force", extra=fields(err=str(error)))
            self.problem = str(error)
        self._stamp = stamp

    def in_force(self, now: float) -> tuple[Cordon, ...]:
        """Return the cordons that are in force at a time."""
        return tuple(one for one in self.last or () if one.is_in_force(now))


def cordons_wire(cordons: Iterable[Cordon]) -> list[dict[str, Any]]:
    """Return cordons as JSON values."""
    return [asdict(one) for one in cordons]


def cordons_of(wire: Any) -> tuple[Cordon, ...]:
    """Return what `cordons_wire` described. Raises: ValueError for anything else."""
    try:
        return tuple(_cordon(one) for one in wire[:MAX_CORDONS])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not cordons: {error!r}") from error


def _cordons(wire: Any) -> tuple[Cordon, ...]:
    if not isinstance(wire, dict) or wire.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION!r}")
    return cordons_of(wire["cordons"])


def _cordon(wire: Any) -> Cordon:
    device, reason, until = wire["device"], wire["reason"], wire["until"]
    if not isinstance(device, str) or not is_dns_label(device) or not isinstance(reason, str):
        raise ValueError(f"not a cordon: {wire!r:.100}")
    return Cordon(device, reason[:MAX_REASON], float(wire["since"]), None if until is None else float(until))
