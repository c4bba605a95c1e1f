"""Shared core: while several calls run, their threads share one core.

Only one of them can run Python at a time. To pass the interpreter's lock to a thread on another core, that core has to
be woken, which takes longer than most pieces of work between two passes. A call that is alone runs wherever the kernel
puts it. Only speed depends on this: if binding threads is not permitted, calls run as they would without it.
Source: sched_setaffinity(2), cpuset(7); docs/decisions/0014.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from dra_driver.model.machine import present_core
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

TURN_SECONDS = 0.02  # how long a core is used before one is chosen again: another program may begin to run on it


class SharedCore:
    """The core that calls share. A thread enters it (`with`) when a call begins, and leaves it at the call's end.

    The shared core is the one on which the second call begins, because the kernel has chosen it and prefers cores that
    are free. The thread of the first call moves there at once, and the threads of later calls when those begin.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()  # guards everything below
        self._active: set[int] = set()  # the threads that are in a call, by their native ids
        self._newest = 0  # the thread whose call began last
        self._bound: set[int] = set()  # the threads that may run on the shared core only
        self._core = self._own = frozenset[int]()  # the shared core, and all cores of a thread that is not bound
        self._free: Collection[int] = ()  # the cores to set in order to unbind a thread
        self._until = 0.0  # when to choose a core again, by the clock
        self._born_free: set[threading.Thread] = set()  # threads that are known not to be bound
        self._is_refused = False

    def __enter__(self) -> None:
        me = threading.get_native_id()
        with self._mutex:
            before, self._newest = self._newest, me
            self._active.add(me)
            if len(self._active) > 1 and not self._is_refused:
                self._join(me, before)

    def __exit__(self, *_: object) -> None:
        me = threading.get_native_id()
        with self._mutex:
            self._active.discard(me)
            if self._bound:
                self._release({me} if len(self._active) > 1 else {me, *self._bound})

    def _join(self, me: int, before: int) -> None:
        """Bind the thread of a call that begins beside others to the core; if the core is new, bind theirs as well."""
        threads = {me}
        try:
            if not self._bound or self._clock() >= self._until:
                self._choose()
                threads |= self._bound | self._active.intersection((before,))
            if len(self._own) > 1:
                for thread in threads:
                    self._bound.add(thread)
                    os.sched_setaffinity(thread, self._core)
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) != errno.EINVAL:  # EINVAL means that the core has just left the cpuset
                self._is_refused = True
                log.debug("calls do not share a core", extra=fields(err=str(error)))

    def _choose(self) -> None:
        """Choose the core on which this thread, which is not bound, runs now. Raises: OSError, AttributeError."""
        own = frozenset(os.sched_getaffinity(0))
        if own != self._own:
            self._own, self._free = own, _mask_to_unbind(own)
        self._core, self._until = frozenset((present_core(),)), self._clock() + TURN_SECONDS

    def _release(self, threads: set[int]) -> None:
        """Unbind threads; with the last of them, also threads that bound ones started, which inherit their core."""
        threads &= self._bound
        self._bound -= threads
        if not self._bound:
            alive = {thread for thread in threading.enumerate() if thread.native_id is not None}
            threads.update(thread.native_id or 0 for thread in alive - self._born_free)
            self._born_free = alive
        for thread in threads:
            with suppress(OSError):  # the thread has ended, or its cpuset has none of these cores
                os.sched_setaffinity(thread, self._free)


def _mask_to_unbind(own: frozenset[int]) -> Collection[int]:
    """Return the cores to set in order to unbind a thread that may run on the cores `own`.

    These are all cores of the machine, unless this process was bound to a part of its cpuset. The kernel leaves out the
    cores that are not in the cpuset, also if the cpuset is changed later. Raises: OSError.
    """
    every = range(os.sysconf("SC_NPROCESSORS_CONF"))
    os.sched_setaffinity(0, every)
    if os.sched_getaffinity(0) == own:
        return every
    os.sched_setaffinity(0, own)
    return own


CALLS = SharedCore()  # one for the whole process, because the process has one interpreter lock
