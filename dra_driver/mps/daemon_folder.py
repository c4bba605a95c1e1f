"""The files of one device's daemon, and the record by which a restarted supervisor finds the daemon again.

    <root>/<key>/state.json     the wanted settings and the process's identity; only our user can read it
                 pipe/  shm/    mounted into clients: the control channel and their /dev/shm
                 log/           the daemon's logs; clients never see them, but they contain text from clients

Each of the three folders is a small tmpfs if mounting is permitted, so that clients can't fill the node's disk. The key
is short, because the control socket's path has to fit into a socket address, and is always the same for a device.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.model.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.model.limits import SOCKET_PATH_BYTES
from dra_driver.model.records import Key, RecordForm
from dra_driver.model.sharing import MpsSettings, SharedDevice
from dra_driver.mps import client_files, mounts, wire
from dra_driver.mps.mounts import Size
from dra_driver.mps.processes import Inode, Origin, ProcessIdentity

_STATE = "state.json"
_STATE_VERSION = 1
_LONGEST = "pipe/control_privileged"  # the longest socket path that the daemon makes
_MIB = 1 << 20
PIPE_SIZE = Size(_MIB, 256, 0o755)  # for sockets and a pid file; only root can create more files
LOG_SIZE = Size(32 * _MIB, 64, 0o755)  # for two logs of 4 MiB, which are shortened once a minute
SHM_MIB = 1024
_SHM_INODES = 16384
_FORMER = 16  # how many earlier daemons are remembered, whose servers may still have clients
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """The record of one daemon. `process` is None until it was forked; `was_ready` is set when clients may use it.

    `is_mounted` is whether its folders have file systems of their own. `origin` has further facts about the process; a
    record of version 0.1.0 has none. `former` are earlier daemons of the device that ended before their servers.
    """

    device: SharedDevice
    settings: MpsSettings
    boot_id: str
    is_wanted: bool = True
    was_ready: bool = False
    is_mounted: bool = False
    process: ProcessIdentity | None = None
    origin: Origin | None = None
    former: tuple[ProcessIdentity, ...] = ()

    def daemons(self) -> tuple[ProcessIdentity, ...]:
        """Return the processes of the control daemon and of the daemons before it."""
        return (*self.former, *([self.process] if self.process else []))[-_FORMER:]


def key_of(uuid: str) -> str:
    """Return the name of a device's folder: the FNV-1a hash of its UUID, because hashlib takes four MiB of memory.

    >>> key_of("GPU-00000000-0000-0000-0000-000000000000")
    'd52e6ea59e48'
    """
    value = _FNV_OFFSET
    for byte in uuid.encode():
        value = (value ^ byte) * _FNV_PRIME % 2**64
    return f"{value:016x}"[-12:]


class DaemonFolder:
    """The folder of one device below `root`."""

    def __init__(self, root: Path, key: str) -> None:
        self.path = root / key
        self.key = key
        self.pipe, self.shm, self.log = self.path / "pipe", self.path / "shm", self.path / "log"

    @property
    def control(self) -> Path:
        """The socket on which the control daemon listens."""
        return self.pipe / "control"

    def make(self, *, shm_mib: int | None) -> None:
        """Make the missing folders, with file systems of their own unless `shm_mib` is None.

        Raises: NodeError("node.folder"), SharingError.
        """
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
            if shm_mib is not None:
                mounts.ensure_tmpfs(self.pipe, PIPE_SIZE)
                mounts.ensure_tmpfs(self.log, LOG_SIZE)
                mounts.ensure_tmpfs(self.shm, Size(shm_mib * _MIB, _SHM_INODES, 0o1777))
            self.shm.chmod(0o1777)  # the same mode as /dev/shm, for clients of any user
        except OSError as exc:
            raise NodeError("folder", f"folder {self.path} can't be made: {exc.strerror}", retry=Retry.LATER) from exc

    def remove(self) -> None:
        """Remove everything, mounts first and the record last. Raises: NodeError("node.folder"), SharingError."""
        try:
            for folder in (self.pipe, self.shm, self.log):
                mounts.remove(folder)
                client_files.empty(folder)
                with suppress(FileNotFoundError):
                    folder.rmdir()
            shutil.rmtree(self.path, onerror=_missing_is_fine)
        except OSError as exc:
            text = f"folder {self.path} can't be removed: {exc.strerror}"
            raise NodeError("folder", text, retry=Retry.LATER) from exc

    def read(self) -> DaemonRecord | None:
        """Return the record, or None if there is none or it can't be read."""
        try:
            return _state_of(json.loads((self.path / _STATE).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, DriverError):
            return None

    def write(self, state: DaemonRecord) -> None:
        """Replace the record atomically. Raises: NodeError("node.folder")."""
        target = self.path / _STATE
        temporary = target.with_suffix(".new")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps(_state_wire(state)).encode())
            # No fsync: a kill leaves either the old record or the new one, and a power failure ends the daemon too.
            temporary.replace(target)
        except OSError as exc:
            raise NodeError("folder", f"{target} can't be written: {exc.strerror}", retry=Retry.LATER) from exc

    def clear_pipe(self) -> None:
        """Remove what an earlier daemon and its clients left in the pipe folder. Raises: NodeError("node.folder").

        If clients go on writing there, the folder does not become empty, but a daemon can start there all the same.
        """
        try:
            client_files.empty(self.pipe)
        except OSError as exc:
            text = f"folder {self.pipe} can't be emptied: {exc.strerror}"
            raise NodeError("folder", text, retry=Retry.LATER) from exc

    def sweep_shm(self) -> int:
        """Remove the files in /dev/shm that no process uses any more. Return how many."""
        try:
            return client_files.sweep(self.shm)
        except OSError:
            return 0


def folders_below(root: Path) -> list[DaemonFolder]:
    """Return the folders below `root`, in order of key."""
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    return [DaemonFolder(root, name) for name in names]


def _state_wire(state: DaemonRecord) -> dict[str, Any]:
    return {
        "version": _STATE_VERSION,
        **_RECORD.write(state),
        **(_PROCESS.write(state.process) if state.process else dict.fromkeys(_PROCESS.keys)),
        **(_ORIGIN.write(state.origin) if state.origin else dict.fromkeys(_ORIGIN.keys)),
    }


def _state_of(value: dict[str, Any]) -> DaemonRecord | None:
    if value["version"] != _STATE_VERSION:
        return None
    process = _PROCESS.read(value) if value["pid"] is not None else None
    origin = _ORIGIN.read(value) if value.get("executable") else None
    return _RECORD.read(value, process=process, origin=origin)


def _former(processes: Iterable[ProcessIdentity]) -> list[list[int]]:
    return [[one.pid, one.start_ticks] for one in processes]


def _former_of(value: Iterable[tuple[int, int]]) -> tuple[ProcessIdentity, ...]:
    return tuple(ProcessIdentity(int(pid), int(ticks)) for pid, ticks in value)


def _is_true(value: Any) -> bool:
    return value is True


def _inode(value: tuple[int, int]) -> Inode:
    device, number = value
    return int(device), int(number)


_PROCESS = RecordForm(ProcessIdentity, pid=Key("pid", read=int), start_ticks=Key("startTicks", read=int))
_ORIGIN = RecordForm(Origin, namespace=Key("pidNamespace", read=int), executable=Key("executable", list, _inode))
_RECORD = RecordForm(
    DaemonRecord,
    without=("process", "origin"),  # whose fields are written beside those of the record
    device=Key("device", wire.device_wire, wire.device_of),
    settings=Key("settings", wire.settings_wire, wire.settings_of),
    boot_id=Key("bootID", read=str),
    is_wanted=Key("isWanted", read=_is_true),
    was_ready=Key("wasReady", read=_is_true),
    is_mounted=Key("isMounted", read=_is_true, missing=False),
    former=Key("former", _former, _former_of, missing=()),
)


def _missing_is_fine(_call: object, _path: str, reason: Any) -> None:
    error = reason[1] if isinstance(reason, tuple) else reason
    if not isinstance(error, FileNotFoundError):
        raise error
