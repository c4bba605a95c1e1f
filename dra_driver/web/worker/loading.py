"""The progress of the worker's loading, as messages to the console.

In: the progress of a view. Out: messages, no more than ten each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dra_driver.views.progress import ProgressLine, ProgressLines

SendMessage = Callable[[tuple[Any, ...]], None]
_SECONDS = 0.1


class _SentProgress:
    def __init__(self, send: SendMessage, noun: str, total: int) -> None:
        self._send, self._noun, self._total = send, noun, total
        self._next = 0.0

    def update(self, done: int) -> None:
        """Send how many are done, unless that was sent a moment ago."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _SECONDS
            self._send(("progress", self._noun, done, self._total))

    def close(self) -> None:
        """Do nothing: the next message shows that the task has ended."""


def progress_lines(send: SendMessage) -> ProgressLines:
    """Return progress lines that are sent as messages."""

    def begin(noun: str, total: int = 0) -> ProgressLine:
        return _SentProgress(send, noun, total)

    return begin
