"""Processes of ours: told by what they carry in their environment, never by a name alone.

In: a marker, which every control daemon and what it starts inherits. Out: identities (pid and start time) that can be
waited for and signalled without ever meeting another process under the same number. Reads /proc; needs Linux 5.3.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MARKER = "DRA_DRIVER_MPS"
_PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process. `start_ticks` is when it began, in clock ticks since boot: pids are used again, pairs are not."""

    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Say whether it still runs; a zombie does not."""
        return identify(self.pid) == self


def identify(pid: int) -> Identity | None:
    """Give the running process that has this pid; None where there is none, or a zombie.

    Source: proc_pid_stat(5): state is the first field after the name in parentheses, starttime the twentieth.
    """
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - a hot path of the kill tests
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        return None
    return Identity(pid, int(words[19]))


def marked(value: str) -> list[Identity]:
    """List the running processes whose environment carries the marker with this value."""
    pids = (int(name) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208
    return [found for pid in pids if pid != os.getpid() and (found := identify_marked(pid, value))]


def identify_marked(pid: int, value: str) -> Identity | None:
    """Give the running process that has this pid, if it carries the marker with this value."""
    return identify(pid) if f"{MARKER}={value}".encode() in _words(f"{_PROC}/{pid}/environ") else None


def arguments(identity: Identity) -> list[str]:
    """Give the command line of a process; empty when it is gone."""
    words = [word.decode(errors="replace") for word in _words(f"{_PROC}/{identity.pid}/cmdline")]
    return words if identity.is_alive() else []


def open_pidfd(identity: Identity) -> int | None:
    """Give a descriptor that becomes readable when the process ends; None when it has ended already."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError as exc:
        if exc.errno == errno.ESRCH:
            return None
        raise
    if not identity.is_alive():  # the number went to somebody else between the two looks
        os.close(fd)
        return None
    return fd


def wait_gone(identities: Iterable[Identity], seconds: float) -> list[Identity]:
    """Wait until all have ended; give those that have not in time."""
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


def send(identity: Identity, number: signal.Signals) -> None:
    """Signal a process; one that has ended is fine."""
    fd = open_pidfd(identity)
    if fd is None:
        return
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def end(identities: Iterable[Identity], grace_s: float) -> list[Identity]:
    """End processes: SIGTERM, after the grace SIGKILL. Gives those that even that did not end (stuck in the kernel)."""
    alive = [identity for identity in identities if identity.is_alive()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for identity in alive:
            send(identity, number)
        alive = wait_gone(alive, grace_s)
    return alive


def reap() -> None:
    """Take the exit statuses of daemons that became our children: we may be the first process of a PID namespace.

    A child that somebody waits for is left to its waiter, and what stands behind it to the next call.
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
    """Start a child that this caller waits for; `reap` leaves it alone meanwhile."""
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


_waiting = threading.Lock()
_waited_for: set[int] = set()


def _words(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read().split(b"\0")
    except OSError:
        return []
