"""The request to stop, made by a signal handler and waited for by the main thread.

In: signals. Out: the end of a wait. A `threading.Event` would not do: its lock is held for a moment whenever a wait
begins or ends, and a handler that runs in that moment, in the same thread, would wait for the lock forever.
"""

from __future__ import annotations

import os
import select


class StopRequest:
    """Whether the process was asked to stop. `set` takes no lock, so a signal handler may call it at any moment."""

    def __init__(self) -> None:
        self._is_set = False
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def set(self) -> None:
        """Ask the process to stop, and wake the thread that waits."""
        self._is_set = True
        os.eventfd_write(self._descriptor, 1)

    def is_set(self) -> bool:
        """Return whether the process was asked to stop."""
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the process is asked to stop, at most `seconds`; return whether it was asked.

        Only one thread may wait.
        """
        self._poll.poll(None if seconds is None else seconds * 1000)
        return self._is_set
