"""LineHandler: writes each line of the log at once, or the lines of one thread together.

In: log records. Out: lines on a stream. A thread that has many lines to write joins them, so that it gives up the
interpreter's lock for one write and not for each of them. The order of all lines of the process stays as they were
logged: a line of another thread first writes what waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

MAX_BYTES = 4096  # of one write with several lines: on a pipe no other process's lines come in between (PIPE_BUF)


class LineHandler(logging.StreamHandler[TextIO]):
    """A handler of a process's log. Only lines of the thread that joins its lines wait, and only while it does so."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._joining: int | None = None  # the thread whose lines wait
        self._waiting: list[str] = []
        self._bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line and what waits before it, or keep it, if its thread joins its lines and there is room."""
        try:
            line = self.format(record) + self.terminator
            size = len(line.encode(errors="replace"))
            if self._bytes + size > MAX_BYTES:
                self.flush()
            self._waiting.append(line)
            self._bytes += size
            if threading.get_ident() != self._joining:
                self.flush()
        except Exception:  # noqa: BLE001 - as every handler: an error of the log ends no thread
            self.handleError(record)

    def flush(self) -> None:
        """Write what waits."""
        self.acquire()
        try:
            text = "".join(self._waiting)
            self._waiting.clear()
            self._bytes = 0
            if text:
                self.stream.write(text)
            super().flush()
        finally:
            self.release()

    def join(self, thread: int | None) -> None:
        """Join the lines of this thread from now on; with None, write the lines that wait, and join no more."""
        self.acquire()
        try:
            self._joining = thread
            if thread is None:
                self.flush()
        finally:
            self.release()


@contextmanager
def joined_lines() -> Iterator[None]:
    """Join the lines that the calling thread logs. One thread of a process may do this at a time."""
    handlers = [one for one in logging.getLogger().handlers if isinstance(one, LineHandler)]
    for handler in handlers:
        handler.join(threading.get_ident())
    try:
        yield
    finally:
        for handler in handlers:
            with suppress(OSError):  # nobody reads the log any more
                handler.join(None)
