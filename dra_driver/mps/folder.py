"""Folder: what one device's daemon has on disk, and the record by which a restarted supervisor finds it again.

    <root>/<key>/state.json     what is wanted, and which process it is
                 pipe/  shm/    mounted into clients: the control channel and their /dev/shm
                 log/           the daemon's logs; clients never see them

The key is short, for the control socket's path has to fit into a socket address, and the same for the same device.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dra_driver.model.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.model.limits import SOCKET_PATH_BYTES
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import mounts, wire
from dra_driver.mps.processes import Identity

_STATE = "state.json"
_STATE_VERSION = 1
_LONGEST = "pipe/control_privileged"  # the longest socket that the daemon makes
PID_FILE = "nvidia-cuda-mps-control.pid"
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


@dataclass(frozen=True, slots=True)
class State:
    """The record of one daemon. `process` is None until it was seen to run; `was_ready` once it has been handed out."""

    device: SharedDevice
    settings: MpsSettings
    boot_id: str
    is_wanted: bool = True
    was_ready: bool = False
    process: Identity | None = None


def key_of(uuid: str) -> str:
    """Name a device's folder: FNV-1a of its UUID, for hashlib costs four MiB.

    >>> key_of("GPU-00000000-0000-0000-0000-000000000000")
    'd52e6ea59e48'
    """
    value = _FNV_OFFSET
    for byte in uuid.encode():
        value = (value ^ byte) * _FNV_PRIME % 2**64
    return f"{value:016x}"[-12:]


class Folder:
    """The folder of one device below `root`."""

    def __init__(self, root: Path, key: str) -> None:
        self.path = root / key
        self.key = key
        self.pipe, self.shm, self.log = self.path / "pipe", self.path / "shm", self.path / "log"

    def make(self, *, with_tmpfs: bool) -> None:
        """Make what is missing. Raises: NodeError("node.folder"), SharingError."""
        longest = self.path / _LONGEST
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES:
            raise SharingError(
                "mps-path-too-long",
                f"{longest} is longer than the {SOCKET_PATH_BYTES} bytes that a socket path may have",
                hint="use a shorter --kubelet-plugins-directory-path",
            )
        try:
            self.path.mkdir(mode=0o755, exist_ok=True)
            for folder in (self.pipe, self.shm, self.log):
                folder.mkdir(mode=0o755, exist_ok=True)
            if with_tmpfs:
                mounts.ensure_tmpfs(self.shm)
            self.shm.chmod(0o1777)  # as /dev/shm is: clients of any user
        except OSError as exc:
            raise NodeError("folder", f"folder {self.path} can't be made: {exc.strerror}", retry=Retry.LATER) from exc

    def remove(self) -> None:
        """Remove everything, the mount first and the record last. Raises: NodeError("node.folder")."""
        try:
            mounts.remove(self.shm)
            for folder in (self.pipe, self.shm, self.log):
                shutil.rmtree(folder, ignore_errors=False, onerror=_missing_is_fine)
            shutil.rmtree(self.path, onerror=_missing_is_fine)
        except OSError as exc:
            text = f"folder {self.path} can't be removed: {exc.strerror}"
            raise NodeError("folder", text, retry=Retry.LATER) from exc

    def read(self) -> State | None:
        """Give the record; None where there is none that can be read."""
        try:
            return _state_of(json.loads((self.path / _STATE).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, DriverError):
            return None

    def write(self, state: State) -> None:
        """Replace the record in one step. Raises: NodeError("node.folder")."""
        target = self.path / _STATE
        temporary = target.with_suffix(".new")
        try:
            with temporary.open("wb") as file:
                file.write(json.dumps(_state_wire(state)).encode())
            temporary.replace(target)  # a kill leaves the old one or the new one; a power failure ends the daemon too
        except OSError as exc:
            raise NodeError("folder", f"{target} can't be written: {exc.strerror}", retry=Retry.LATER) from exc

    def pid(self) -> int:
        """Give the pid that the daemon wrote; 0 where there is none. Clients can write it: never trust it alone."""
        try:
            return int((self.pipe / PID_FILE).read_text()[:12])
        except (OSError, ValueError):
            return 0

    def forget_pid(self) -> None:
        """Remove the pid file of a daemon that is no more."""
        (self.pipe / PID_FILE).unlink(missing_ok=True)


def found(root: Path) -> list[Folder]:
    """List the folders below `root`, in order of key."""
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    return [Folder(root, name) for name in names]


def with_process(state: State, process: Identity) -> State:
    """Give the record of a daemon that was seen to run."""
    return replace(state, process=process)


def _state_wire(state: State) -> dict[str, Any]:
    process = state.process
    return {
        "version": _STATE_VERSION,
        "device": wire.device_wire(state.device),
        "settings": wire.settings_wire(state.settings),
        "bootID": state.boot_id,
        "isWanted": state.is_wanted,
        "wasReady": state.was_ready,
        "pid": process.pid if process else None,
        "startTicks": process.start_ticks if process else None,
    }


def _state_of(value: dict[str, Any]) -> State | None:
    if value["version"] != _STATE_VERSION:
        return None
    pid, ticks = value["pid"], value["startTicks"]
    return State(
        device=wire.device_of(value["device"]),
        settings=wire.settings_of(value["settings"]),
        boot_id=str(value["bootID"]),
        is_wanted=value["isWanted"] is True,
        was_ready=value["wasReady"] is True,
        process=Identity(int(pid), int(ticks)) if pid is not None else None,
    )


def _missing_is_fine(_call: object, _path: str, reason: Any) -> None:
    error = reason[1] if isinstance(reason, tuple) else reason
    if not isinstance(error, FileNotFoundError):
        raise error
