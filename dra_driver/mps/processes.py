"""Identify our own processes by what the kernel reports, never by what a process has in its memory or writes.

In: identities recorded when the processes began (pid and start time, executable and PID namespace). Out: which of them
still run, which processes they have started, and their end. No file is read that waits for another process's memory
(environ, cmdline, maps), because a hostile process could make such a read hang. Needs Linux 5.3.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from dra_driver.mps import children

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
    children.reap()
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
