"""Loop: a background thread that takes one turn after the other.

In: a turn, which returns the seconds until the next one, or None when there is nothing left to do. Out: its
effects. There is one way to start, wake and end a thread, and to log a turn that failed.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from functools import partial

from dra_driver.model.errors import DriverError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.part_thread import HANG_SECONDS, PartThread

log = logging.getLogger(__name__)

FAULT_SECONDS = 1.0


class Loop:
    """Takes turns in a daemon thread. An error in a turn is logged as `failure`; the next comes after `fault_s`.

    An unexpected exception is logged with its traceback. Any thread may call any method. A turn that hangs does not
    keep the process from ending. The process counts as not alive once a turn has taken longer than `hang_s`. A turn
    that waits for hardware may take any time, because a restart would not help.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        failure: str,
        fault_s: float = FAULT_SECONDS,
        hang_s: float = HANG_SECONDS,
    ) -> None:
        self._name, self._turn, self._failure, self._fault_s = name, turn, failure, fault_s
        self._hang_s = hang_s
        self._mutex = threading.Lock()
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread: PartThread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that takes turns."""
        return self._thread is not None

    @property
    def is_stopped(self) -> bool:
        """Whether the turn under way is to end soon."""
        return self._over.is_set()

    def start(self) -> None:
        """Start, with a turn at once. A stopped loop may be started again. Raises: NodeError("node.thread")."""
        with self._mutex:
            self._over = threading.Event()  # a thread that hung when it was stopped stays stopped
            self._begin()

    def resume(self) -> None:
        """Take a turn at once, also if the thread has ended because nothing was left to do. Do nothing after `stop`.

        Raises: NodeError("node.thread"); the next call tries again to start the thread.
        """
        with self._mutex:
            self._wake.set()
            if self._thread is None and not self._over.is_set():
                self._begin()

    def wake(self) -> None:
        """Take the next turn at once, if the loop runs."""
        self._wake.set()

    def stop(self, timeout_s: float = 0.0) -> None:
        """Take no more turns, and wait at most `timeout_s` seconds for the turn under way."""
        with self._mutex:
            self._over.set()
            self._wake.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.release()
            thread.join(timeout_s)

    def _begin(self) -> None:
        thread = PartThread(self._name, partial(self._run, self._over), hang_s=self._hang_s)
        thread.start()
        self._thread = thread

    def _run(self, over: threading.Event, thread: PartThread) -> None:
        while True:
            self._wake.clear()
            if over.is_set():
                return
            try:
                with thread.turn():
                    pause = self._turn()
            except DriverError as error:
                log.error(self._failure, extra=fields(code=error.code, err=str(error)))  # noqa: TRY400
                pause = self._fault_s
            except Exception:
                log.exception(self._failure)
                pause = self._fault_s
            if pause is not None:
                self._wake.wait(None if pause == math.inf else pause)
            elif self._is_ended(over, thread):
                return

    def _is_ended(self, over: threading.Event, thread: PartThread) -> bool:
        """Return whether the thread ends: nothing is left to do, and no turn was requested meanwhile."""
        with self._mutex:
            if self._wake.is_set() and not over.is_set():
                return False
            if not over.is_set():
                thread.release()
                self._thread = None
            return True
