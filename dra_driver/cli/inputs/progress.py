"""The progress of a long command, as a line on standard error.

In: how many items are done. Out: a line that is redrawn, if standard error is a terminal. Nothing is written during the
first half second, and the line is removed at the end.
"""

from __future__ import annotations

import sys
import time

_FIRST_SECONDS, _SECONDS = 0.5, 0.2
_CLEAR = "\r\x1b[K"


class TerminalProgress:
    """The progress line of one long task."""

    def __init__(self, noun: str, total: int = 0) -> None:
        self._noun = noun
        self._total = total
        self._is_seen = sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._is_drawn = False

    def update(self, done: int) -> None:
        """Draw how many items are done, unless that was drawn a moment ago."""
        if not self._is_seen or (now := time.monotonic()) < self._next:
            return
        self._next = now + _SECONDS
        self._is_drawn = True
        of = f" of {self._total:,}" if self._total else ""
        print(f"{_CLEAR}{done:,}{of} {self._noun}, {done / (now - self._began):,.0f}/s", end="", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._is_drawn:
            print(_CLEAR, end="", file=sys.stderr)
            sys.stderr.flush()
