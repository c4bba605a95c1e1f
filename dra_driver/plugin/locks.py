"""NodeLocks: locks by name, for claims and for devices, that hold between threads and between two agents on a node.

There is never one lock for the whole node: calls that share no name run at the same time. The kernel releases a dead
process's locks. An Unprepare goes before all Prepares that wait for the same lock in this process, because it frees
what they are waiting for. Each name is one byte of one file, locked for the open file description (F_OFD_SETLK):
nothing is written, and no file per claim is left behind. Two names that map to the same byte merely wait for each
other.
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


class _LocalLock:
    """This process's half of a lock; discarded when no call uses the name. `first` are waiting calls that go first."""

    __slots__ = ("first", "leaving", "lock", "taking", "users")

    def __init__(self, name: str) -> None:
        self.lock = threading.Lock()
        self.users = self.first = 0
        self.taking, self.leaving = _kernel_requests(name)


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
        """Hold the locks of all names. They are taken in sorted order, so that two callers can't block each other.

        Entering raises: PrepareError("prepare.locked", LATER) naming the lock that was not free by the deadline.
        """
        return _Held(self, sorted(set(names)), deadline)

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
        if not (self._is_free(local, deadline) or self._is_taken(local, deadline)):
            self._leave(name, local)
            raise _locked(name)
        try:
            if not self._is_set(local.taking):
                self._await_kernel(name, local.taking, deadline)
        except BaseException:
            local.lock.release()
            self._leave(name, local)
            raise

    def _is_free(self, local: _LocalLock, deadline: Deadline) -> bool:
        """Take this process's half of a lock if no thread has it, and none waits that goes first."""
        if not local.lock.acquire(blocking=False):
            return False
        if deadline.goes_first or not local.first:
            return True
        local.lock.release()
        return False

    def _is_taken(self, local: _LocalLock, deadline: Deadline) -> bool:
        """Wait for this process's half of a lock. A thread that gets it yields to waiting calls that go first."""
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

    def _await_kernel(self, name: str, taking: bytes, deadline: Deadline) -> None:
        while not deadline.has_passed():
            time.sleep(_POLL_SECONDS)
            if self._is_set(taking):
                return
        raise _locked(name)

    def release(self, name: str) -> None:
        """Release the lock of one name, which this thread has."""
        local = self._locals[name]
        self._is_set(local.leaving)
        local.lock.release()
        self._leave(name, local)

    def _leave(self, name: str, local: _LocalLock) -> None:
        with self._mutex:
            local.users -= 1
            if not local.users:
                del self._locals[name]

    def _is_set(self, request: bytes) -> bool:
        """Lock or unlock a byte; return False when another process has it locked."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, request)
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


class _Held:
    """The locks of some names, held from its beginning to its end; a generator's frames would cost more than that."""

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
    """Return what makes the kernel lock the byte of a name, and what makes it unlock it."""
    offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 2
    # struct flock: l_type, l_whence, l_start, l_len, l_pid (0 for locks of the open file description)
    lock, unlock = (struct.pack("hhqqi", kind, os.SEEK_SET, offset, 1, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK))
    return lock, unlock


def _locked(name: str) -> PrepareError:
    return PrepareError("locked", f"another call is still at work on {name}", retry=Retry.LATER)
