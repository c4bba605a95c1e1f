"""Part threads: the threads that the process needs, and whether each of them runs.

In: threads, each from its start until it is released. Out: sentences about those that have ended or hang, for the
probe of liveness, because only a new process cures them. Whether a server, the kubelet or a GPU answers does not count,
because a restart would not change that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

from dra_driver.telemetry.thread_start import start_thread

HANG_SECONDS = 1800.0  # many requests that each run into their time limit, or a slow disk, take minutes


class LivePart(Protocol):
    """A part of the process that has to run."""

    def fault(self) -> str:
        """Return why the part does not run, "" if it does. Never wait for anything."""


class NeededParts:
    """The parts that have to run now. Any thread may call any method; none waits."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._parts: WeakSet[LivePart] = WeakSet()

    def add(self, part: LivePart) -> None:
        """Require that a part runs from now on."""
        with self._mutex:
            self._parts.add(part)

    def release(self, part: LivePart) -> None:
        """Allow a part to end."""
        with self._mutex:
            self._parts.discard(part)

    def faults(self) -> tuple[str, ...]:
        """Return why parts do not run, a sentence for each."""
        with self._mutex:
            parts = tuple(self._parts)
        return tuple(sorted(fault for part in parts if (fault := part.fault())))


NEEDED = NeededParts()  # one for the whole process, because a probe is answered for the whole process


class PartThread:
    """A daemon thread that is needed from `start` until `release`. Each object is started once.

    `run` gets this object, and does within `turn` what has to end within `hang_s` seconds.
    """

    def __init__(self, name: str, run: Callable[[PartThread], None], *, hang_s: float = HANG_SECONDS) -> None:
        self._name, self._hang_s = name, hang_s
        self._thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)
        self._began: float | None = None  # when the turn under way began

    def start(self) -> None:
        """Start the thread. Raises: NodeError("node.thread"); it is then not needed."""
        start_thread(self._thread)
        NEEDED.add(self)

    def release(self) -> None:
        """Allow the thread to end."""
        NEEDED.release(self)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of a thread that was started, unless this is called in that thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Return a context that has to end within `hang_s` seconds."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None

    def fault(self) -> str:
        """Return why the thread does not work, "" if it does."""
        if not self._thread.is_alive():
            return f"the thread {self._name} has ended"
        began = self._began
        if began is None or (seconds := time.monotonic() - began) <= self._hang_s:
            return ""
        return f"the thread {self._name} has hung for {seconds:.0f} s"
