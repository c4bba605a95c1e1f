"""The files of one device's daemon, and the record by which a restarted supervisor finds the daemon again.

    <root>/<key>/state.json     the wanted settings and the process's identity; only our user can read it
                 pipe/  shm/    mounted into clients: the control channel and their /dev/shm
                 log/           the daemon's logs; clients never see them, but they contain text from clients

Each of the three folders is a small tmpfs if mounting is permitted, so that clients can't fill the node's disk. The key
is short, because the control socket's path has to fit into a socket address, and is always the same for a device.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dra_driver.base.errors import SOCKET_PATH_BYTES, DriverError, NodeError, Retry, SharingError
from dra_driver.base.wire import Key, MpsSettings, RecordForm, SharedDevice
from dra_driver.node.mps import client, processes
from dra_driver.node.mps.processes import Inode, Origin, ProcessIdentity

# Mounts: a small tmpfs for what clients of a device can write, and a mount namespace with the daemon's own
# /dev/shm.

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_NOSYMFOLLOW = 0x2, 0x4, 0x8, 0x100
_CAP_SYS_ADMIN = 21
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class Size(NamedTuple):
    """The most that a tmpfs may hold, and the mode of its root folder."""

    bytes: int
    inodes: int
    mode: int


def are_permitted() -> bool:
    """Return whether this process may mount at all (CAP_SYS_ADMIN)."""
    try:
        words = Path("/proc/self/status").read_text().split()
        return bool(int(words[words.index("CapEff:") + 1], 16) >> _CAP_SYS_ADMIN & 1)
    except (OSError, ValueError):
        return False


def ensure_tmpfs(folder: Path, size: Size) -> None:
    """Mount a tmpfs on a folder unless one is mounted already. Raises: SharingError("sharing.mps-no-permission").

    Clients write there and this process is root, so symbolic links are not followed through this mount (Linux 5.10);
    inside containers they work as usual.
    """
    if not folder.is_mount():
        options = f"mode={size.mode:o},size={size.bytes},nr_inodes={size.inodes}"
        _mount("dra-driver-mps", folder, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_NOSYMFOLLOW, options)


def remove(folder: Path) -> None:
    """Unmount everything that is mounted on a folder, including mounts on top of each other. Raises: SharingError."""
    while folder.is_mount():
        if _libc.umount2(os.fsencode(folder), _MNT_DETACH) != 0:
            raise _refused(f"can't unmount {folder}")


def enter_private(root: Path, folder: Path, shm: Path) -> None:
    """Move the calling thread into a new mount namespace, with `shm` at /dev/shm and `root` as /.

    `folder` appears at its own path below `root` too. Later mounts and unmounts of the host still take effect, so that
    no pod's volume is kept busy. Call this only in a thread that ends afterwards.

    Raises: SharingError("sharing.mps-no-permission").
    """
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise _refused("can't make a mount namespace for the MPS daemon")
    _mount("none", Path("/"), None, _MS_REC | _MS_SLAVE, None)
    if root != Path("/"):
        _mount(str(folder), _made(root / folder.relative_to("/")), None, _MS_BIND | _MS_REC, None)
    _mount(str(shm), _made(root / "dev/shm"), None, _MS_BIND, None)
    if root != Path("/"):
        os.chroot(root)
    os.chdir("/")


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SharingError(
            "mps-no-permission",
            f"folder {folder} can't be made: {exc.strerror}",
            hint="mount the driver root writable into the MPS supervisor",
        ) from exc
    return folder


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str | None) -> None:
    words = [os.fsencode(source), os.fsencode(target), kind and kind.encode(), flags, options and options.encode()]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[4]) != 0:
        raise _refused(f"can't mount {target}")


def _refused(text: str) -> SharingError:
    number = ctypes.get_errno()
    hint = "run the MPS supervisor privileged, with hostPID" if number in {errno.EPERM, errno.EACCES} else ""
    return SharingError("mps-no-permission", f"{text}: {os.strerror(number)}", hint=hint)


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
                ensure_tmpfs(self.pipe, PIPE_SIZE)
                ensure_tmpfs(self.log, LOG_SIZE)
                ensure_tmpfs(self.shm, Size(shm_mib * _MIB, _SHM_INODES, 0o1777))
            self.shm.chmod(0o1777)  # the same mode as /dev/shm, for clients of any user
        except OSError as exc:
            raise NodeError("folder", f"folder {self.path} can't be made: {exc.strerror}", retry=Retry.LATER) from exc

    def remove(self) -> None:
        """Remove everything, mounts first and the record last. Raises: NodeError("node.folder"), SharingError."""
        try:
            for folder in (self.pipe, self.shm, self.log):
                remove(folder)
                processes.empty(folder)
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
            processes.empty(self.pipe)
        except OSError as exc:
            text = f"folder {self.pipe} can't be emptied: {exc.strerror}"
            raise NodeError("folder", text, retry=Retry.LATER) from exc

    def sweep_shm(self) -> int:
        """Remove the files in /dev/shm that no process uses any more. Return how many."""
        try:
            return processes.sweep(self.shm)
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


def _former(identities: Iterable[ProcessIdentity]) -> list[list[int]]:
    return [[identity.pid, identity.start_ticks] for identity in identities]


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
    device=Key("device", client.device_wire, client.device_of),
    settings=Key("settings", client.settings_wire, client.settings_of),
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


# Daemon entries: the supervisor's record of each daemon.


@dataclass(slots=True)
class DaemonEntry:
    """One device's daemon in memory. `due` is when to repair it (monotonic seconds); None if that is not needed."""

    folder: DaemonFolder
    lock: threading.Lock = field(default_factory=threading.Lock)
    state: DaemonRecord | None = None
    error: str = ""
    attempts: int = 0
    restarts: int = 0
    began: float = 0.0
    due: float | None = None
    watched: tuple[ProcessIdentity, int] | None = None
    users: int = 0


class DaemonEntries:
    """The entries of the daemons below `root`, by the key of the daemon's folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_key: dict[str, DaemonEntry] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, folder: DaemonFolder) -> DaemonEntry:
        """Add the daemon of a folder that an earlier supervisor left."""
        entry = self._by_key[folder.key] = DaemonEntry(folder)
        return entry

    def all(self) -> list[DaemonEntry]:
        """Return the entries of all daemons, in the order of their folders' keys."""
        with self._lock:
            return [self._by_key[key] for key in sorted(self._by_key)]

    @contextmanager
    def held(self, key: str, deadline: float) -> Iterator[DaemonEntry]:
        """Hold one device's entry exclusively; afterwards, drop it if there is no daemon and no command waits for it.

        Raises: SharingError("sharing.mps-busy") if the entry does not become free before `deadline` (monotonic
        seconds).
        """
        with self._lock:
            entry = self._by_key.setdefault(key, DaemonEntry(DaemonFolder(self._root, key)))
            entry.users += 1
        try:
            if not entry.lock.acquire(timeout=min(threading.TIMEOUT_MAX, max(0.0, deadline - time.monotonic()))):
                raise SharingError("mps-busy", "another command is working on this MPS daemon", retry=Retry.NOW)
            try:
                yield entry
            finally:
                entry.lock.release()
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users and entry.state is None and entry.due is None:
                    self._by_key.pop(key, None)


# Reports on daemons, made from memory without asking the daemon.


@dataclass(frozen=True, slots=True)
class DaemonReport:
    """The report on one daemon. `error` is why the daemon is not ready, or its last error."""

    state: DaemonRecord
    folder: DaemonFolder
    is_ready: bool
    restarts: int
    error: str


def report_of(state: DaemonRecord, entry: DaemonEntry) -> DaemonReport:
    """Return the report on the daemon of an entry, whose record is `state`."""
    is_served = state.is_wanted and state.was_ready and not entry.error  # a daemon that is being ended takes no clients
    is_ready = is_served and state.process is not None and state.process.is_alive()
    return DaemonReport(state, entry.folder, is_ready, entry.restarts, entry.error)
