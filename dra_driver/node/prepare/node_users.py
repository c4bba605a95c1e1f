"""Node users: the containers of this node's pods that have a device node, and their processes that have it open.

In: numbers of device nodes, and procfs. Out: `NodeUser`s, and whether everything could be seen. Nodes are recognized by
number, because a container may have them under any path. Every process of a pod is looked at for open files and
mappings of files, and so is each thread with open files of its own; one process of each mount namespace for the nodes
in its /dev. A process belongs to a pod by its cgroup, which it can't leave, or by mounts from the pod's own folder. An
open file that is only a path (O_PATH) is no use of the device: every pod may make a node, but the kernel lets only
those open it that were given the device. The files of a process that is ending are not listed, and still open.

Source: proc(5), /proc/pid/fd, fdinfo, map_files, mountinfo; cgroups(7), capabilities(7), user_namespaces(7); statx(2),
kcmp(2); Kubernetes names a pod's cgroup by its UID.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

# Running pods: finds pods whose containers outlive the Unprepare of their claim, which delays the devices' release.

_MOUNTS_BYTES = 1 << 20
_POD = re.compile(r"/pods/([0-9A-Fa-f-]{32,36})/")
PROC = Path("/proc")  # the kernel's own folder; tests replace it in some places
ENDED = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})  # what the kernel answers about a process that has ended


def pods_with_folders(uids: Iterable[object], pods: Path) -> Iterator[str]:
    """Yield the pods that still have a folder of the kubelet's; if those folders can't be seen, yield all pods."""
    for uid in map(str, uids):
        if uid and "/" not in uid and ((pods / uid).exists() or not pods.is_dir()):
            yield uid


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Return the pods that have a live process, looking at one process per mount namespace.

    Raises: OSError if not all processes can be seen.
    """
    found: set[str] = set()
    seen: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace, mounts = _view(process, seen)
        except OSError as error:
            if error.errno not in ENDED:  # a zombie has no mounts either
                raise
            continue
        if namespace in seen:
            continue
        if namespace and mounts:
            seen.add(namespace)
        found.update(pods_of_mounts(mounts).intersection(uids))
    return frozenset(found)


def _view(process: Path, seen: Collection[str]) -> tuple[str, bytes]:
    """Return the mount namespace of a process, and the first MiB of its list of mounts; no list if `seen` has it.

    Both are read through one descriptor, so that they can't be those of two processes with a reused pid.
    Raises: OSError.
    """
    fd = os.open(process, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            namespace = os.readlink("ns/mnt", dir_fd=fd)
        except OSError:  # not even root may see it of every process; then the mounts alone tell
            namespace = ""
        if namespace in seen:
            return namespace, b""
        with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            return namespace, file.read(_MOUNTS_BYTES)
    finally:
        os.close(fd)


def pods_of_mounts(mounts: bytes) -> frozenset[str]:
    """Return the pods from whose folder one of these mounts, lines of mountinfo, comes.

    A mount whose mount point contains the pod's UID too does not count: the kubelet sees its volumes so, and a process
    that has mounted the kubelet's folder. Only the first UID in the source counts, because the rest of the path may be
    inside a volume, where a pod can choose any names.
    """
    found: set[str] = set()
    for line in mounts.decode(errors="replace").splitlines() if b"/pods/" in mounts else ():
        columns = line.split(" ", 5)
        first = _POD.search(columns[3]) if len(columns) == 6 else None
        if first and first[1] not in columns[4]:
            found.add(first[1])
    return frozenset(found)


LOOK_SECONDS = 5.0  # how long one look may take; what it has not seen by then counts as not seen
_NODES_MOST = 4096  # in one container's /dev
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_MEMORY = "tmpfs"  # of a container's own /dev; only this is listed, because a file server may never answer
_POD_NODE_USERS = re.compile(rb"pod([0-9a-fA-F]{8}(?:[-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12}|[0-9a-fA-F]{32})")
_LIMITS = re.compile(rb"^CapBnd:\s*([0-9a-f]+)$", re.MULTILINE)
_FILE_BYTES = 1 << 20
_SYS_ADMIN = 1 << 21
_EXITING = 4  # PF_EXITING, a flag of a process
_ENDED_STATES = frozenset({b"Z", b"X"})
_DONT_SYNC, _NO_AUTOMOUNT, _NOFOLLOW, _EMPTY_PATH = 0x4000, 0x800, 0x100, 0x1000
_TYPE = 0x1
_STATX_BYTES, _MODE, _RDEV, _DEV = 256, 28, 128, 136  # the size of struct statx, and where these fields are
_KCMP, _KCMP_FILES = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), 0), 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, order=True)
class NodeUser:
    """A container with a device node; `pid` is a process that has the node open, 0 if none was seen.

    `is_of_host` for a container that has all devices of the host, because it is privileged or sees the host's /dev.
    """

    number: int
    pod: str
    pid: int = 0
    program: str = ""
    is_of_host: bool = False

    def __str__(self) -> str:
        device = f"{os.major(self.number)}:{os.minor(self.number)}"
        return f"process {self.pid} ({self.program or 'unknown'}) of pod {self.pod}, device {device}"


@dataclass(slots=True)
class NodeLook:
    """The users of device nodes that were found, and why that may not be all; "" if it is. `is_blind`: no right to.

    `ending` are the pids of processes that are ending, each with its pods, "" if it can't be seen which: whether they
    still have a node open is not shown.
    """

    users: set[NodeUser] = field(default_factory=set)
    ending: dict[int, frozenset[str]] = field(default_factory=dict)
    problem: str = ""
    is_blind: bool = False

    def fail(self, error: OSError) -> None:
        """Record why something was not seen."""
        self.problem = str(error)
        self.is_blind |= error.errno in {errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class _Container:
    """What the mounts of a mount namespace show: its pods, and which file system its /dev is."""

    pods: frozenset[str]
    sees_host: bool
    own_dev: frozenset[tuple[int, int]]


def look_at_nodes(numbers: Collection[int], proc: Path = PROC, seconds: float = LOOK_SECONDS) -> NodeLook:
    """Return the containers that have nodes with these numbers, and the processes that have one open."""
    return _Looking(frozenset(numbers), proc, time.monotonic() + seconds).run()


class _Looking:
    """One look at all processes."""

    def __init__(self, numbers: frozenset[int], proc: Path, until: float) -> None:
        self._numbers, self._proc, self._until = numbers, proc, until
        self._look = NodeLook()
        self._containers: dict[str, _Container] = {}
        self._listed: set[str] = set()  # mount namespaces whose /dev was listed

    def run(self) -> NodeLook:
        seen: set[str] = set()
        try:
            while self._numbers and (new := {name for name in os.listdir(self._proc) if name.isdigit()} - seen):  # noqa: PTH208
                seen |= new  # until there are no more: a process may hand its files to a new one and end
                for name in new:
                    self._try(f"{self._proc}/{name}", int(name))
                if self._look.problem:
                    break
        except OSError as error:
            self._look.fail(error)
            return self._look
        if self._is_in_a_pod():
            self._look.problem, self._look.is_blind = "only the agent's own pod is seen (hostPID is off)", True
        return self._look

    def _is_in_a_pod(self) -> bool:
        """Return whether the first process belongs to a pod: then this procfs shows the processes of that pod only."""
        try:
            with _opened_process(f"{self._proc}/1") as process:
                mounts = _file_of(process, "mountinfo")
                return bool(_pods_of_cgroup(process) or pods_of_mounts(mounts))
        except OSError as error:
            self._look.fail(error)
            return error.errno == errno.ENOENT  # processes of other users are hidden

    def _try(self, path: str, pid: int) -> None:
        if time.monotonic() > self._until:
            self._look.problem = f"there are too many processes and open files to look at in {LOOK_SECONDS:.0f} s"
            return
        try:
            with _opened_process(path) as process:
                if not self._look_at(process, pid):
                    return
            for thread in os.listdir(f"{path}/task"):  # noqa: PTH208 - the first thread may have ended before others
                if int(thread) != pid and not _have_same_files(pid, int(thread)):
                    with _opened_process(f"{path}/task/{thread}") as process:
                        self._look_at(process, pid)
        except OSError as error:
            if error.errno not in ENDED:
                self._look.fail(error)

    def _look_at(self, process: int, pid: int) -> bool:
        """Look at one thread of a process, and return whether its other threads may belong to a pod, too."""
        link = _link_of(process, "ns/mnt")
        namespace = link or ""
        container = self._container(process, namespace)
        pods = _pods_of_cgroup(process) or container.pods
        if not pods:
            if namespace not in self._containers and _is_ending(process):
                self._look.ending[pid] = frozenset({""})
            return link is None  # it has ended, and others may run
        is_of_host = container.sees_host or _may_administer(process)
        for number in self._open(process):
            program = _file_of(process, "comm").decode("utf-8", "replace").strip()
            program = "".join(one if one.isprintable() else "?" for one in program)[:16]
            self._look.users.update(NodeUser(number, pod, pid, program, is_of_host) for pod in pods)
        if _is_ending(process):  # asked after its files were listed: it may have begun to end meanwhile
            self._look.ending[pid] = pods
        if namespace in self._listed or is_of_host:
            return True
        for number in self._in_dev(process, container):
            self._look.users.update(NodeUser(number, pod) for pod in pods)
        if namespace:
            self._listed.add(namespace)
        return True

    def _container(self, process: int, namespace: str) -> _Container:
        """Return what the mounts of a process show, which is kept unless it is ending and has none."""
        if namespace not in self._containers:
            mounts = _file_of(process, "mountinfo")
            if not (namespace and mounts):
                return _container(mounts)
            self._containers[namespace] = _container(mounts)
        return self._containers[namespace]

    def _open(self, process: int) -> Iterator[int]:
        """Yield those of the numbers of which a process has an open file or a mapping."""
        for folder in ("fd", "map_files"):
            try:
                names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
            except OSError as error:
                if error.errno not in ENDED:
                    raise
                continue
            try:
                yield from self._numbers_in(names, process if folder == "fd" else -1)
            finally:
                os.close(names)

    def _numbers_in(self, folder: int, process: int) -> Iterator[int]:
        """Yield those of the numbers to which the links in a folder of procfs lead."""
        found: set[int] = set()
        for name in os.listdir(folder):
            if time.monotonic() > self._until:
                raise OSError(errno.ETIME, "a process has too many open files to look at")
            number = _number(name, folder)
            if number in self._numbers and number not in found and (process < 0 or not _is_path_only(name, process)):
                found.add(number)
                yield number

    def _in_dev(self, process: int, container: _Container) -> Iterator[int]:
        """Yield those of the numbers that nodes in a container's own /dev have, and in the folders there."""
        if not container.own_dev:
            return
        folder = os.open("root/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
        try:
            if _file_system(folder) in container.own_dev:
                yield from self._nodes_below(folder, 2)
        finally:
            os.close(folder)

    def _nodes_below(self, folder: int, depth: int) -> Iterator[int]:
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with os.scandir(listing) as entries:
                for _, entry in zip(range(_NODES_MOST), entries, strict=False):
                    with suppress(OSError):  # the container removed or replaced it meanwhile
                        if entry.is_dir(follow_symlinks=False):
                            if depth > 1:
                                yield from self._below(entry.name, listing, depth)
                        elif (number := _character_device(entry.name, listing, follows=False)) in self._numbers:
                            yield number
        finally:
            os.close(listing)

    def _below(self, name: str, listing: int, depth: int) -> Iterator[int]:
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=listing)
        try:
            if _file_system(folder) == _file_system(listing):  # no other mount
                yield from self._nodes_below(folder, depth - 1)
        finally:
            os.close(folder)


def _number(name: str, folder: int) -> int:
    """Return the number of the character device to which a link of procfs leads; 0 for none. Raises: OSError."""
    try:
        if not os.readlink(name, dir_fd=folder).startswith("/"):  # a socket, a pipe
            return 0
        return _character_device(name, folder, follows=True)
    except OSError as error:
        if error.errno not in ENDED:
            raise
        return 0


def _is_path_only(name: str, process: int) -> bool:
    flags = _FLAGS.search(_file_of(process, f"fdinfo/{name}"))
    return flags is not None and bool(int(flags[1], 8) & os.O_PATH)


def _container(mounts: bytes) -> _Container:
    dev = root = ""
    systems: set[tuple[int, int]] = set()
    for line in mounts.decode(errors="replace").splitlines():
        columns, _, after = line.partition(" - ")
        places, kind = columns.split(" "), after.split(" ")[0]
        if len(places) > 4 and places[4] == "/":
            root = kind
        if len(places) > 4 and places[4] == "/dev":  # the last one counts, which covers the others
            dev, (major, _, minor) = kind, places[2].partition(":")
            systems = {(int(major), int(minor))} if major.isdigit() and minor.isdigit() else set()
    is_known = dev == _MEMORY and not root.startswith(("fuse", "nfs", "9p", "cifs", "smb"))
    return _Container(pods_of_mounts(mounts), dev == "devtmpfs", frozenset(systems if is_known else ()))


# One process in procfs: all is read through one descriptor of its folder, and what has ended reads as empty.


@contextmanager
def _opened_process(path: str) -> Iterator[int]:
    """Open a process, so that all that is read is of this one, whoever gets its id next. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _link_of(process: int, name: str) -> str | None:
    """Return where a link of a process leads; None if the process has ended, "" if that may not be seen."""
    try:
        return os.readlink(name, dir_fd=process)
    except OSError as error:
        return None if error.errno in ENDED else ""


def _file_of(process: int, name: str) -> bytes:
    """Return the first MiB of a file of a process; nothing if the process has ended. Raises: OSError."""
    try:
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as file:
            return file.read(_FILE_BYTES)
    except OSError as error:
        if error.errno not in ENDED:
            raise
        return b""


def _pods_of_cgroup(process: int) -> frozenset[str]:
    """Return the pod to whose cgroup a process belongs, if there is one. Raises: OSError."""
    found = _POD_NODE_USERS.search(_file_of(process, "cgroup"))
    return frozenset([found[1].decode().replace("_", "-").lower()] if found else ())


def _may_administer(process: int) -> bool:
    """Return whether a process may administer the host: no container gets that right by itself.

    Its limits count, which no process can raise, and only in this user namespace: a new one has all rights in itself.
    """
    limits = _LIMITS.search(_file_of(process, "status"))
    if limits is None or not int(limits[1], 16) & _SYS_ADMIN:
        return False
    return _link_of(process, "ns/user") == os.readlink("/proc/self/ns/user")  # noqa: PTH115


# Open files of other processes. A container may have files of a file server of its own (FUSE) open that never answers,
# so the kernel is asked only for what it knows already (AT_STATX_DONT_SYNC); an ordinary stat could hang for ever.


def _is_ending(process: int) -> bool:
    """Return whether a process has begun to end, and has not ended. Raises: OSError.

    The kernel lists no files of such a process any more, and closes them later: a device may take seconds.
    """
    columns = _file_of(process, "stat").rpartition(b")")[2].split()
    return len(columns) > 6 and columns[0] not in _ENDED_STATES and bool(int(columns[6]) & _EXITING)


def _character_device(name: str, folder: int, *, follows: bool) -> int:
    """Return the number of the character device that a name in an open folder is; 0 for another file. Raises: OSError.

    `follows` for links of procfs, which lead to the file itself and not to a path.
    """
    found = _statx(name, folder, 0 if follows else _NOFOLLOW)
    mode = int.from_bytes(found[_MODE : _MODE + 2], "little")
    return _device_number(found, _RDEV) if stat.S_ISCHR(mode) else 0


def _file_system(fd: int) -> tuple[int, int]:
    """Return the device numbers of the file system of an open file, as mountinfo has them. Raises: OSError."""
    number = _device_number(_statx("", fd, _EMPTY_PATH), _DEV)
    return os.major(number), os.minor(number)


def _have_same_files(one: int, other: int) -> bool:
    """Return whether two threads have one table of open files. False if that can't be determined."""
    return bool(_KCMP) and _libc.syscall(_KCMP, one, other, _KCMP_FILES, 0, 0) == 0


def _statx(name: str, folder: int, flags: int) -> bytes:
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(folder, os.fsencode(name), flags | _DONT_SYNC | _NO_AUTOMOUNT, _TYPE, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return buffer.raw


def _device_number(found: bytes, at: int) -> int:
    major, minor = (int.from_bytes(found[i : i + 4], "little") for i in (at, at + 4))
    return os.makedev(major, minor)
