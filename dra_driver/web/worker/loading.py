"""The progress of the worker's loading, as messages to the console.

In: the progress of a view. Out: messages, no more than ten each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dra_driver.views.progress import ProgressLine, ProgressLines

Tell = Callable[[tuple[Any, ...]], None]
_SECONDS = 0.1


class _Told:
    def __init__(self, tell: Tell, noun: str, total: int) -> None:
        self._tell, self._noun, self._total = tell, noun, total
        self._next = 0.0

    def tell(self, done: int) -> None:
        """Send the number that are done, but not too often."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _SECONDS
            self._tell(("progress", self._noun, done, self._total))

    def close(self) -> None:
        """Send nothing, because the next task or the board follows."""


def lines_to(tell: Tell) -> ProgressLines:
    """Return progress lines whose progress is sent."""

    def begin(noun: str, total: int = 0) -> ProgressLine:
        return _Told(tell, noun, total)

    return begin
