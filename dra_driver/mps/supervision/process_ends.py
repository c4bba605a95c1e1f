"""Process ends: the kernel reports through pidfds, without polling, that processes have ended.

In: processes to watch. Out: which of them have ended, for the one thread that waits.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from dra_driver.mps import processes
from dra_driver.mps.processes import ProcessIdentity
from dra_driver.mps.supervision.entries import DaemonEntry


class ProcessEnds:
    """The watched processes of all entries.

    A caller that changes what is watched for an entry holds the entry's lock.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)

    def watch(self, entry: DaemonEntry, process: ProcessIdentity) -> bool:
        """Watch a process in place of what was watched for the entry; return False if it has ended already."""
        if entry.watched and entry.watched[0] == process and process.is_alive():
            return True
        self.drop(entry)
        fd = processes.open_pidfd(process)
        if fd is None:
            return False
        entry.watched = (process, fd)
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        return True

    def drop(self, entry: DaemonEntry) -> None:
        """Stop watching the process of an entry."""
        if entry.watched is not None:
            _, fd = entry.watched
            entry.watched = None
            with suppress(OSError):
                self._epoll.unregister(fd)
            os.close(fd)

    def wake(self) -> None:
        """Wake the thread in `wait`; if no thread waits, the next call of `wait` returns at once."""
        os.eventfd_write(self._wake, 1)

    def wait(self, until: float) -> set[int]:
        """Sleep until a process ends, `until` (monotonic seconds), or `wake`; return the pidfds of those that ended."""
        ended = {fd for fd, _ in self._epoll.poll(max(0.0, until - time.monotonic()))}
        if self._wake in ended:
            ended.discard(self._wake)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        return ended
