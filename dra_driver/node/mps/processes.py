"""Identify our own processes by what the kernel reports, never by what a process has in its memory or writes.

In: identities recorded when the processes began (pid and start time, executable and PID namespace). Out: which of them
still run, which processes they have started, and their end. No file is read that waits for another process's memory
(environ, cmdline, maps), because a hostile process could make such a read hang. Needs Linux 5.3.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# The children of this process: each is waited for by one caller, and some end together with their parent.

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.PyDLL(None)
_waiting = threading.Lock()
_waited_for: set[int] = set()


def reap() -> None:
    """Collect the exit statuses of children that no caller waits for.

    Daemons become our children if this is the first process of its PID namespace. A child that a caller waits for is
    left to that caller, and the children queued behind it to the next call.
    """
    with _waiting:
        try:
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in _waited_for:
                    return
                os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return


@contextmanager
def child(start: Callable[[], subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that the caller waits for; `reap` leaves it alone meanwhile."""
    with _waiting:
        process = start()
        _waited_for.add(process.pid)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        with _waiting:
            _waited_for.discard(process.pid)


@contextmanager
def held(spawn: Callable[[], int]) -> Iterator[int]:
    """Spawn a child whose pid can't be reused until this context ends; after that, `reap` collects its exit status."""
    with _waiting:
        pid = spawn()
        _waited_for.add(pid)
    try:
        yield pid
    finally:
        with _waiting:
            _waited_for.discard(pid)


def kill_with_parent() -> Callable[[], None]:
    """Return a function for a child to call before its program begins, so that it is killed when its parent ends.

    A command that outlived its supervisor could reach the daemon at any later time, even after commands of the next
    supervisor.
    """
    parent = os.getpid()

    def arrange() -> None:  # runs between fork and exec in a process with threads: no imports, no locks
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return arrange


_PROC = "/proc"
_ENDED = (b"Z", b"X")
_ROUNDS = 5  # how often processes are searched that were started while others were ended

Inode = tuple[int, int]
"""A file, identified by its file system's device number and its inode number."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process. `start_ticks` is its start in clock ticks since boot: a reused pid has another start."""

    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Return whether the process still runs; a zombie does not."""
        return identify(self.pid) == self


@dataclass(frozen=True, slots=True)
class Origin:
    """Further facts about a daemon, recorded at its start: its PID namespace and the program that it runs."""

    namespace: int
    executable: Inode


@dataclass(frozen=True, slots=True)
class _Stat:
    """The contents of /proc/pid/stat for one process."""

    state: bytes
    parent: int
    session: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """Return the running process with this pid; None if there is none or it is a zombie."""
    found = _stat(pid)
    return ProcessIdentity(pid, found.start_ticks) if found and found.state not in _ENDED else None


def is_genuine(identity: ProcessIdentity, origin: Origin) -> bool:
    """Return whether a recorded process still runs its recorded program, as our user and in our PID namespace."""
    return (
        identity.is_alive()
        and origin.namespace == namespace_of()
        and namespace_of(identity.pid) == origin.namespace
        and _user_of(identity.pid) == os.geteuid()
        and executable_of(identity.pid) == origin.executable
        and identity.is_alive()
    )


def namespace_of(pid: int | str = "self") -> int:
    """Return the inode of a process's PID namespace; 0 if it can't be read."""
    try:
        return os.stat(f"{_PROC}/{pid}/ns/pid").st_ino  # noqa: PTH116 - called very often in the kill tests
    except OSError:
        return 0


def executable_of(pid: int | str) -> Inode | None:
    """Return the program that a process runs; None if it can't be read."""
    try:
        found = os.stat(f"{_PROC}/{pid}/exe")  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def started_by(daemons: Iterable[ProcessIdentity]) -> list[ProcessIdentity]:
    """Return the running processes that these daemons have started, even if the daemon has ended.

    They are in the session that the daemon began, or are descendants of its children. No process can enter the session
    of another, and a session's number is not reused while the session has members. If it was reused later, the first
    process of the session is a different one, or all members are in a PID namespace other than ours.
    """
    known = {daemon.pid: daemon for daemon in daemons}
    if not known:
        return []
    running = {pid: stat for pid in _pids() if (stat := _stat(pid))}
    begun = {
        pid: daemon.start_ticks
        for pid, daemon in known.items()
        if pid not in running or running[pid].start_ticks == daemon.start_ticks
    }
    ours = {pid for pid, stat in running.items() if begun.get(stat.session, stat.start_ticks + 1) <= stat.start_ticks}
    ours |= begun.keys() & running.keys()
    while more := {pid for pid, stat in running.items() if stat.parent in ours} - ours:
        ours |= more
    here = namespace_of()
    found = [ProcessIdentity(pid, running[pid].start_ticks) for pid in sorted(ours) if running[pid].state not in _ENDED]
    return [one for one in found if known.get(one.pid) != one and namespace_of(one.pid) == here]


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if it has already ended."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError as exc:
        if exc.errno == errno.ESRCH:
            return None
        raise
    if not identity.is_alive():  # the pid was reused between the two checks
        os.close(fd)
        return None
    return fd


def wait_gone(identities: Iterable[ProcessIdentity], seconds: float) -> list[ProcessIdentity]:
    """Wait until all have ended; return those that have not ended in time."""
    ends = time.monotonic() + seconds
    left = []
    for identity in identities:
        fd = open_pidfd(identity)
        if fd is None:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(max(0.0, ends - time.monotonic()) * 1000):
                left.append(identity)
        finally:
            os.close(fd)
    reap()
    return left


def send(identity: ProcessIdentity, number: signal.Signals) -> None:
    """Signal a process; do nothing if it has ended."""
    fd = open_pidfd(identity)
    if fd is None:
        return
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def end(identities: Iterable[ProcessIdentity], grace_s: float) -> list[ProcessIdentity]:
    """End processes with SIGTERM and, after `grace_s` seconds, with SIGKILL. Return those stuck in the kernel."""
    alive = [identity for identity in identities if identity.is_alive()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for identity in alive:
            send(identity, number)
        alive = wait_gone(alive, grace_s)
    return alive


def end_all(look: Callable[[], list[ProcessIdentity]], grace_s: float) -> list[ProcessIdentity]:
    """End all processes that `look` returns, and those that are started meanwhile. Return those that do not end."""
    left: list[ProcessIdentity] = []
    for _ in range(_ROUNDS):
        found = look()
        if not found or (left and set(found) <= set(left)):
            return left
        left = end(found, grace_s)
    return left


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]  # noqa: PTH208


def _stat(pid: int) -> _Stat | None:
    """Return what the kernel reports about a process.

    Source: proc_pid_stat(5): after the name in parentheses come state, ppid, pgrp, session; starttime is the twentieth.
    """
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - called very often in the kill tests
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Stat(words[0], int(words[1]), int(words[3]), int(words[19])) if len(words) >= 20 else None


def _user_of(pid: int) -> int | None:
    """Return the user of a process if its real, effective, saved and file system users are the same."""
    with suppress(OSError, ValueError), open(f"{_PROC}/{pid}/status", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"Uid:"):
                users = set(line.split()[1:])
                return int(users.pop()) if len(users) == 1 else None
    return None


# Read and remove files that clients may have put into a folder, without following links or blocking.

DEPTH = 16  # how many levels of folders are searched for unused files; deeper ones are emptied as a whole
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _OPEN
_SET_SIGNAL = 10  # F_SETSIG: the signal for a broken lease; the default signal would end this process
_TRASH = ".removed-"
_EMPTY_S = 1.0  # enough for a whole tmpfs: 16384 files, or as many nested folders, take 0.2 s
_SWEEP_S = 10.0  # enough for a whole tmpfs: 16384 files take 0.6 s on an idle node


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of our own user. Raises: OSError, also if the path leads to anything else."""
    fd = os.open(path, flags | _OPEN)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(f"{path} is not a regular file of user {os.geteuid()}")


def tail(path: Path, max_bytes: int, begins: int = 0) -> bytes:
    """Return the last bytes of a regular file of our own user, none before `begins`; b"" if there is none."""
    try:
        fd = open_regular(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, max_bytes, max(begins, os.fstat(fd).st_size - max_bytes))
    finally:
        os.close(fd)


def size(path: Path) -> int:
    """Return the size of a regular file of our own user; 0 if there is none."""
    try:
        fd = open_regular(path)
    except OSError:
        return 0
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def empty(folder: Path, seconds: float = _EMPTY_S) -> bool:
    """Remove everything in a folder; do nothing if the folder is missing. Raises: OSError.

    Nested folders are moved up before they are searched, so that no depth needs recursion. Return whether the folder
    became empty within `seconds`, which it does not if clients write into it all the time.
    """
    try:
        fd = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return True
    try:
        return _empty(fd, time.monotonic() + seconds)
    finally:
        os.close(fd)


def sweep(folder: Path, seconds: float = _SWEEP_S) -> int:
    """Remove the files below a folder that no process has open or mapped; return how many. Raises: OSError.

    Sockets and FIFOs stay, because they hold no data. Folders in which nothing was removed stay as well, and so does
    whatever is not reached within `seconds`.
    """
    fd = os.open(folder, _FOLDER)
    try:
        return _sweep(fd, DEPTH, time.monotonic() + seconds)
    finally:
        os.close(fd)


def _empty(fd: int, until: float) -> bool:
    while names := os.listdir(fd):
        for name in names:
            if time.monotonic() >= until:
                return False
            with suppress(FileNotFoundError, NotADirectoryError):  # a client changed it; the next round handles it
                _remove(fd, name)
    return True


def _remove(fd: int, name: str) -> None:
    """Remove one entry. If it is a folder, move the folders in it up, under names that no client can guess."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=fd)
        return
    inner = os.open(name, _FOLDER, dir_fd=fd)
    try:
        for below in os.listdir(inner):  # noqa: PTH208
            try:
                os.unlink(below, dir_fd=inner)
            except IsADirectoryError:
                os.rename(below, f"{_TRASH}{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=fd)
    finally:
        os.close(inner)
    with suppress(OSError):  # a client has written into it meanwhile; the next round handles that
        os.rmdir(name, dir_fd=fd)


def _sweep(fd: int, depth: int, until: float) -> int:
    removed = 0
    for name in os.listdir(fd):
        if time.monotonic() >= until:
            break
        with suppress(OSError):  # it is gone, or whether it is in use can't be determined
            kind = stat.S_IFMT(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            if kind == stat.S_IFDIR:
                removed += _sweep_folder(fd, name, depth, until)
            elif kind == stat.S_IFLNK or (kind == stat.S_IFREG and not _is_in_use(fd, name)):
                os.unlink(name, dir_fd=fd)
                removed += 1
    return removed


def _sweep_folder(fd: int, name: str, depth: int, until: float) -> int:
    inner = os.open(name, _FOLDER, dir_fd=fd)
    try:
        if depth == 0:
            _empty(inner, until)
            removed = 1
        else:
            removed = _sweep(inner, depth - 1, until)
    finally:
        os.close(inner)
    if removed:
        with suppress(OSError):  # not empty
            os.rmdir(name, dir_fd=fd)
    return removed


def _is_in_use(fd: int, name: str) -> bool:
    """Return whether a process has the file open or mapped: the kernel grants a write lease only if none has.

    Source: fcntl(2), "Leases".
    """
    try:
        file = os.open(name, os.O_RDONLY | _OPEN, dir_fd=fd)
    except BlockingIOError:  # a process holds a lease on it
        return True
    try:
        fcntl.fcntl(file, _SET_SIGNAL, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
