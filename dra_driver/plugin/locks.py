"""Node locks: locks by name, for claims and devices, that hold between threads and between the agents of a node.

There is never one lock for the whole node: calls that share no name run at the same time. The kernel releases the locks
of a dead process. An Unprepare gets a lock before all Prepares that wait for it in this process, because it frees what
they are waiting for. Each name is one byte of one file, locked for the open file description (F_OFD_SETLK): nothing is
written, and no file per claim is left behind. Calls for two names that map to the same byte merely wait for each other.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from dra_driver.model.errors import NodeError, PrepareError, Retry
from dra_driver.plugin.deadline import Deadline

LOCKED = "prepare.locked"  # the code of the error that names a lock which did not become free

_POLL_SECONDS = 0.005  # polled, because the kernel can't wake us at a deadline
# struct flock: l_type, l_whence, l_start, l_len, l_pid (0 for locks of the open file description)
_FLOCK = struct.Struct("hhqqi")
_SET_LOCK = fcntl.F_OFD_SETLK


class _LocalLock:
    """This process's part of a lock that several calls use; at first it belongs to the call that was alone until then.

    `users` is the number of calls that have the lock or wait for it, and `first` how many of those wait and go first.
    """

    __slots__ = ("first", "lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.users, self.first = 1, 0


class NodeLocks:
    """The locks in the file `path`, which every agent on the node opens."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NodeError("lock-file", f"lock file {path} can't be opened: {exc.strerror}") from exc
        self._mutex = threading.Lock()
        self._locals: dict[str, _LocalLock | None] = {}  # by the names in use; None if only the holder uses a name

    def hold(self, names: Iterable[str], deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context that holds the locks of all names.

        They are taken in sorted order, so that two callers can't block each other forever. Entering the context raises
        PrepareError("prepare.locked", LATER), which names the lock that did not become free before the deadline.
        """
        return _HeldLocks(self, sorted(set(names)), deadline)

    def close(self) -> None:
        """Close the file, which releases every lock."""
        os.close(self._fd)

    def take(self, name: str, deadline: Deadline) -> None:
        """Take the lock of one name. Raises: as `hold`."""
        with self._mutex:  # threads of this process first agree among themselves
            local = self._locals[name] = self._joined(name) if name in self._locals else None
        if local is not None and not self._take_from_threads(local, deadline):
            self._leave(name, local)
            raise _locked(name)
        try:
            self._take_from_processes(name, deadline)
        except BaseException:
            self._pass_on(name)
            raise

    def _joined(self, name: str) -> _LocalLock:
        """Return this process's part of a lock that another call uses too, after counting this call."""
        local = self._locals[name] or _LocalLock()
        local.users += 1
        return local

    def _take_from_threads(self, local: _LocalLock, deadline: Deadline) -> bool:
        """Wait until no other thread of this process has the lock; calls that go first get it before all others."""
        with self._mutex:
            if (deadline.goes_first or not local.first) and local.lock.acquire(blocking=False):
                return True
        if deadline.goes_first:
            with self._mutex:
                local.first += 1
            try:
                return local.lock.acquire(timeout=deadline.remaining())
            finally:
                with self._mutex:
                    local.first -= 1
        while local.lock.acquire(timeout=deadline.remaining()):
            if not local.first:
                return True
            local.lock.release()
            time.sleep(_POLL_SECONDS)
        return False

    def _take_from_processes(self, name: str, deadline: Deadline) -> None:
        """Wait until no other process has the lock, and take it."""
        while True:
            try:
                fcntl.fcntl(self._fd, _SET_LOCK, _kernel_requests(name)[0])
            except OSError as exc:
                if exc.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            else:
                return
            if deadline.has_passed():
                raise _locked(name)
            time.sleep(_POLL_SECONDS)

    def release(self, name: str) -> None:
        """Release the lock of one name, which this thread has."""
        fcntl.fcntl(self._fd, _SET_LOCK, _kernel_requests(name)[1])
        self._pass_on(name)

    def _pass_on(self, name: str) -> None:
        """Let another thread of this process have the lock."""
        with self._mutex:
            local = self._locals[name]
            if local is None:
                del self._locals[name]
                return
        local.lock.release()
        self._leave(name, local)

    def _leave(self, name: str, local: _LocalLock) -> None:
        with self._mutex:
            local.users -= 1
            if not local.users:
                del self._locals[name]


class _HeldLocks:
    """Holds the locks of some names for the length of a `with` block. A generator would cost more time."""

    __slots__ = ("_deadline", "_locks", "_names", "_taken")

    def __init__(self, locks: NodeLocks, names: list[str], deadline: Deadline) -> None:
        self._locks, self._names, self._deadline = locks, names, deadline
        self._taken: list[str] = []

    def __enter__(self) -> None:
        try:
            for name in self._names:
                self._locks.take(name, self._deadline)
                self._taken.append(name)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        while self._taken:
            self._locks.release(self._taken.pop())


def claim_lock(uid: str) -> str:
    """Return the name of a claim's lock."""
    return f"claim/{uid}"


def device_lock(device: str) -> str:
    """Return the name of a device's lock, which is taken after those of claims."""
    return f"device/{device}"


def gpu_lock(pci_address: str) -> str:
    """Return the name of a GPU's lock.

    It is taken after the locks of claims and devices (`gpu_holds` has the order of all locks).
    """
    return f"gpu/{pci_address}"


@functools.lru_cache(maxsize=4096)
def _kernel_requests(name: str) -> tuple[bytes, bytes]:
    """Return the requests with which the kernel locks and unlocks the byte of a name."""
    offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 2
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    return lock, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0)


def _locked(name: str) -> PrepareError:
    return PrepareError("locked", f"another call is still working on {name}", retry=Retry.LATER)
