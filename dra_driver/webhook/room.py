"""Limit how much of what callers send is in memory at a time, and how many reviews are worked on.

In: the length of a body. Out: permission to read it, or to decode and judge it, when its turn comes. A small body needs
no permission to be read, since there are no more of them than connections. A large one counts with all its bytes, and
is decoded alone, because decoded values take ten times as much memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

SMALL_BYTES = 16 * 1024
MOST_LARGE_BYTES = 8 << 20  # of all large bodies together
_MOST_JUDGED = 8  # at a time, for each path


class NoRoomError(Exception):
    """There was no room in time."""


class Room:
    """The memory limits of one server. Any thread may ask."""

    def __init__(self, paths: tuple[str, ...], most_bytes: int = MOST_LARGE_BYTES) -> None:
        self._left = most_bytes
        self._changed = threading.Condition()
        self._judged = {path: threading.BoundedSemaphore(_MOST_JUDGED) for path in paths}
        self._large = {path: threading.BoundedSemaphore(1) for path in paths}

    @contextmanager
    def for_body(self, length: int, seconds: float) -> Iterator[None]:
        """Hold room for a body while it is read and judged. Raises: NoRoomError."""
        if length <= SMALL_BYTES:
            yield
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= length, seconds):
                raise NoRoomError
            self._left -= length
        try:
            yield
        finally:
            with self._changed:
                self._left += length
                self._changed.notify_all()

    @contextmanager
    def for_judging(self, path: str, length: int, seconds: float) -> Iterator[None]:
        """Wait until a review of this path may be decoded and judged. Raises: NoRoomError."""
        if length > SMALL_BYTES:
            with _held(self._large[path], seconds), _held(self._judged[path], seconds):
                yield
        else:
            with _held(self._judged[path], seconds):
                yield


@contextmanager
def _held(one: threading.BoundedSemaphore, seconds: float) -> Iterator[None]:
    if not one.acquire(timeout=seconds):
        raise NoRoomError
    try:
        yield
    finally:
        one.release()
