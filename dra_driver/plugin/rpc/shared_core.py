"""Shared core: while several calls run, the threads that answer calls share one core.

Only one of them can run Python at a time. To pass the interpreter's lock to a thread on another core, that core has to
be woken, which takes longer than most pieces of work between two passes. Fewer calls run wherever the kernel puts
them. Only speed depends on this: if binding threads is not permitted, calls run as they would without it.
Source: sched_setaffinity(2), cpuset(7); docs/decisions/0014.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from dra_driver.model.machine import present_core
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

MIN_CALLS = 3  # two calls also overlap when one begins just before the last one ends
TURN_SECONDS = 0.02  # how long a core is used before one is chosen again: another program may begin to run on it


class SharedCore:
    """The core that calls share. A thread enters it (`with`) when a call begins, and leaves it at the call's end.

    The shared core is the one on which the third call begins, because the kernel has chosen it and prefers cores that
    are free. All threads that answer calls are then bound to it, including those that wait for input: so the next calls
    begin there, and need not be moved. They are free again when one call is left.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()  # guards everything below
        self._threads: set[int] = set()  # the threads that answer calls, by their native ids
        self._calls = 0  # how many run
        self._is_bound = self._is_refused = False
        self._core: tuple[int, ...] = ()  # the shared core, once one was chosen
        self._own: frozenset[int] = frozenset()  # all cores of a thread that is not bound
        self._free: Collection[int] = ()  # the cores to set in order to unbind a thread
        self._until = 0.0  # when to choose a core again, by the clock
        self._born_free: set[threading.Thread] = set()  # threads that are known not to be bound

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Return a context in which the calling thread is one of those that answer calls."""
        me = threading.get_native_id()
        with self._mutex:
            self._threads.add(me)
            if self._is_bound:
                with suppress(OSError):  # as for the others, if it is not permitted
                    os.sched_setaffinity(me, self._core)
        try:
            yield
        finally:
            with self._mutex:
                self._threads.discard(me)

    def __enter__(self) -> None:
        with self._mutex:
            self._calls += 1
            if self._calls < MIN_CALLS or self._is_refused:
                return
            if not self._is_bound:
                self._bind()
            elif self._clock() >= self._until:
                self._release()  # so that the kernel chooses where the next call begins

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._calls -= 1
            if self._is_bound and self._calls < 2:
                self._release()

    def _bind(self) -> None:
        """Bind the threads to the core on which this one, which is not bound, runs now."""
        try:
            own = frozenset(os.sched_getaffinity(0))
            if own != self._own:
                self._own, self._free = own, _mask_to_unbind(own)
            self._core = (present_core(),)
            if len(own) > 1:
                self._is_bound, self._until = True, self._clock() + TURN_SECONDS
                for thread in self._threads:
                    os.sched_setaffinity(thread, self._core)
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) != errno.EINVAL:  # EINVAL means that the core has just left the cpuset
                self._is_refused = True
                log.debug("calls do not share a core", extra=fields(err=str(error)))

    def _release(self) -> None:
        """Unbind the threads, and those that bound ones have started, which inherit their core."""
        alive = {thread for thread in threading.enumerate() if thread.native_id is not None}
        for thread in self._threads.union(one.native_id or 0 for one in alive - self._born_free):
            with suppress(OSError):  # the thread has ended, or its cpuset has none of these cores
                os.sched_setaffinity(thread, self._free)
        self._born_free, self._is_bound = alive, False


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
