"""Shared core: while several calls are at work, their threads run on one core.

Only one of them can run Python at a time. To hand the interpreter's lock to a thread on another core, that core has to
be woken, which takes longer than most pieces of work between two hand-overs. A call that is alone runs wherever the
kernel lets it. Only speed depends on this: where it is refused, calls run as they would without it.
Source: sched_setaffinity(2), cpuset(7); docs/decisions/0014.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

TURN_SECONDS = 0.02  # for so long a core is kept, because another program may begin to run on it


class SharedCore:
    """The core that calls share. A thread enters it (`with`) when a call begins, and leaves it at the call's end.

    The core is the one on which the second call begins: the kernel has chosen it, and prefers cores that are free. The
    thread of the call before moves there at once, and those of later calls when they begin.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()  # guards all below
        self._at_work: set[int] = set()  # threads in calls, by the kernel's number
        self._newest = 0  # the thread whose call began last
        self._bound: set[int] = set()  # threads that run on the core and on no other
        self._core = self._own = frozenset[int]()  # the core, and those of a thread that is not bound
        self._free: Collection[int] = ()  # what frees a thread
        self._until = 0.0
        self._born_free: set[threading.Thread] = set()  # threads of which it is known that they are not bound
        self._is_refused = False

    def __enter__(self) -> None:
        me = threading.get_native_id()
        with self._mutex:
            before, self._newest = self._newest, me
            self._at_work.add(me)
            if len(self._at_work) > 1 and not self._is_refused:
                self._join(me, before)

    def __exit__(self, *_: object) -> None:
        me = threading.get_native_id()
        with self._mutex:
            self._at_work.discard(me)
            if self._bound:
                self._release({me} if len(self._at_work) > 1 else {me, *self._bound})

    def _join(self, me: int, before: int) -> None:
        """Bind the thread of a call that begins beside others to the core, and with a new core also the others'."""
        threads = {me}
        try:
            if not self._bound or self._clock() >= self._until:
                self._choose()
                threads |= self._bound | self._at_work.intersection((before,))
            if len(self._own) > 1:
                for thread in threads:
                    self._bound.add(thread)
                    os.sched_setaffinity(thread, self._core)
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) != errno.EINVAL:  # that is: the core has just left the cpuset
                self._is_refused = True
                log.debug("calls do not share a core", extra=fields(err=str(error)))

    def _choose(self) -> None:
        """Choose the core on which this thread, which is not bound, runs now. Raises: OSError, AttributeError."""
        own = frozenset(os.sched_getaffinity(0))
        if own != self._own:
            self._own, self._free = own, _what_frees(own)
        self._core, self._until = frozenset((_asked()(),)), self._clock() + TURN_SECONDS

    def _release(self, threads: set[int]) -> None:
        """Free threads; with the last, also those that were started by bound ones, and are bound from the start."""
        threads &= self._bound
        self._bound -= threads
        if not self._bound:
            alive = {thread for thread in threading.enumerate() if thread.native_id is not None}
            threads.update(thread.native_id or 0 for thread in alive - self._born_free)
            self._born_free = alive
        for thread in threads:
            with suppress(OSError):  # it has ended; or its cpuset has none of these cores, so that nothing binds it
                os.sched_setaffinity(thread, self._free)


def _what_frees(own: frozenset[int]) -> Collection[int]:
    """Return what frees a thread that may run on `own` cores: all, unless this process was bound to some of its cpuset.

    The kernel leaves out the cores that are not in the cpuset, also where the cpuset is changed later. Raises: OSError.
    """
    every = range(os.sysconf("SC_NPROCESSORS_CONF"))
    os.sched_setaffinity(0, every)
    if os.sched_getaffinity(0) == own:
        return every
    os.sched_setaffinity(0, own)
    return own


@functools.cache
def _asked() -> Callable[[], int]:
    """Return the function that returns the number of the present core. Raises: AttributeError where there is none."""
    from ctypes import PyDLL  # noqa: PLC0415 - keeps the interpreter's lock; needed once calls run at the same time

    asked: Callable[[], int] = PyDLL(None).sched_getcpu
    return asked


CALLS = SharedCore()  # one for the process, as is the interpreter's lock
