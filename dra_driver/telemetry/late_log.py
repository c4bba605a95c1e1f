"""Late log: what is logged and counted of the kubelet's calls, written a moment later and in order.

The kubelet waits for an answer, and often calls again at once. A log line and two metrics take a quarter of the time of
an Unprepare, and less than half of that if many are written one after the other. So one thread writes them together, at
most `LAG_SECONDS` after the first, and with few writes. While that thread does not run, each is written at once.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from dra_driver.telemetry.line_handler import joined_lines
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

T = TypeVar("T")

LAG_SECONDS = 0.25  # each turn of this thread delays a call that runs at the same time, so there are few turns


class LateLog:
    """Writes lines in a thread that runs from `start` to `stop`. Any thread may add some."""

    def __init__(self) -> None:
        self._lines: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_awake = self._has_lagged = False
        self._loop = Loop("late-log", self._turn, failure="calls not logged")

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def stop(self) -> None:
        """End the thread, and write what is left."""
        self._loop.stop(1.0)
        with joined_lines():
            self._write()

    def add(self, write: Callable[[T], None], line: T) -> None:
        """Keep a line until `write` is called with it."""
        self._lines.append((write, line))
        if not self._loop.is_running:
            self._write()
        elif not self._is_awake:
            self._is_awake = True
            self._loop.wake()

    def info(self, log: logging.Logger, message: str, **values: object) -> None:
        """Log a message with these key-values."""
        self.add(_log, (log, message, values))

    def _turn(self) -> float:
        if self._is_awake and not self._has_lagged:
            self._has_lagged = True
            return LAG_SECONDS
        self._is_awake = self._has_lagged = False  # set before writing, so that a later line wakes the thread
        with joined_lines():
            self._write()
        return math.inf

    def _write(self) -> None:
        while self._lines:
            try:
                write, line = self._lines.popleft()
            except IndexError:  # another thread was faster
                return
            write(line)


def _log(line: tuple[logging.Logger, str, dict[str, object]]) -> None:
    log, message, values = line
    log.info(message, extra=fields(**values))
