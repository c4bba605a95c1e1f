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

_POLL_SECONDS = 0.005  # polled, because the kernel can't wake us at a deadline
# struct flock: l_type, l_whence, l_start, l_len, l_pid (0 for locks of the open file description)
_FLOCK = struct.Struct("hhqqi")


class _LocalLock:
    """This process's part of a lock; it is discarded when no call uses the name.

    `users` is the number of calls that have the lock or wait for it, and `first` how many of those wait and go first.
    """

    __slots__ = ("first", "lock", "lock_request", "unlock_request", "users")

    def __init__(self, name: str) -> None:
        self.lock = threading.Lock()
        self.users = self.first = 0
        self.lock_request, self.unlock_request = _kernel_requests(name)


class NodeLocks:
    """The locks in the file `path`, which every agent on the node opens."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NodeError("lock-file", f"lock file {path} can't be opened: {exc.strerror}") from exc
        self._locals: dict[str, _LocalLock] = {}
        self._mutex = threading.Lock()

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
        with self._mutex:
            local = self._locals.get(name)
            if local is None:
                local = self._locals[name] = _LocalLock(name)
            local.users += 1
            # Threads of this process first agree among themselves: a call may go on at once if no thread has the lock,
            # and if no call that goes first waits for it.
            is_taken = (deadline.goes_first or not local.first) and local.lock.acquire(blocking=False)
        if not (is_taken or self._wait_take(local, deadline)):
            self._leave(name, local)
            raise _locked(name)
        try:
            if not self._request(local.lock_request):
                self._wait_for_kernel(name, local.lock_request, deadline)
        except BaseException:
            local.lock.release()
            self._leave(name, local)
            raise

    def _wait_take(self, local: _LocalLock, deadline: Deadline) -> bool:
        """Wait until no other thread of this process has the lock; calls that go first get it before all others."""
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

    def _wait_for_kernel(self, name: str, lock_request: bytes, deadline: Deadline) -> None:
        while not deadline.has_passed():
            time.sleep(_POLL_SECONDS)
            if self._request(lock_request):
                return
        raise _locked(name)

    def release(self, name: str) -> None:
        """Release the lock of one name, which this thread has."""
        local = self._locals[name]
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, local.unlock_request)
        local.lock.release()
        self._leave(name, local)

    def _leave(self, name: str, local: _LocalLock) -> None:
        with self._mutex:
            local.users -= 1
            if not local.users:
                del self._locals[name]

    def _request(self, request: bytes) -> bool:
        """Send the kernel a request to lock or unlock a byte. Return False if another process has it locked."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, request)
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


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

    It is taken after the locks of claims and devices, and never together with another.
    """
    return f"gpu/{pci_address}"


@functools.lru_cache(maxsize=1024)
def _kernel_requests(name: str) -> tuple[bytes, bytes]:
    """Return the requests with which the kernel locks and unlocks the byte of a name."""
    offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 2
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    return lock, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0)


def _locked(name: str) -> PrepareError:
    return PrepareError("locked", f"another call is still working on {name}", retry=Retry.LATER)
