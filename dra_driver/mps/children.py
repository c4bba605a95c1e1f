"""The children of this process: each is waited for by one caller, and some end together with their parent.

In: how to start a child. Out: a child whose pid can't be reused, and whose exit status only its caller collects.
Source: PR_SET_PDEATHSIG(2const).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
