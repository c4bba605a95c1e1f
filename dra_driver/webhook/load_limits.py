"""Limit how much of what callers send is in memory at a time, and how many reviews are worked on.

In: the length of a body. Out: permission to read it, or to decode and judge it, when its turn comes. A small body needs
no permission to be read, since there are no more of them than connections. A large one counts with all its bytes, and
is decoded alone, because decoded values take ten times as much memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

SMALL_BYTES = 16 * 1024
MOST_LARGE_BYTES = 8 << 20  # of all large bodies together
_MOST_JUDGED = 8  # at a time, for each path
_FREE = nullcontext()


class OverloadedError(Exception):
    """The limits were reached, and did not free up in time."""


class LoadLimits:
    """The memory limits of one server. Any thread may ask."""

    def __init__(self, paths: tuple[str, ...], most_bytes: int = MOST_LARGE_BYTES) -> None:
        self._left = most_bytes
        self._changed = threading.Condition()
        self._judged = {path: threading.BoundedSemaphore(_MOST_JUDGED) for path in paths}
        self._large = {path: threading.BoundedSemaphore(1) for path in paths}

    def for_body(self, length: int, seconds: float) -> AbstractContextManager[None]:
        """Return a context that reserves memory for a body while it is read and judged.

        Entering raises: OverloadedError.
        """
        return _FREE if length <= SMALL_BYTES else self._for_large_body(length, seconds)

    def for_judging(self, path: str, length: int, seconds: float) -> AbstractContextManager[None]:
        """Return a context that waits until a review of this path may be decoded. Entering raises: OverloadedError."""
        if length <= SMALL_BYTES:
            return _Slot(self._judged[path], seconds)
        return self._for_large_judging(path, seconds)

    @contextmanager
    def _for_large_body(self, length: int, seconds: float) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= length, seconds):
                raise OverloadedError
            self._left -= length
        try:
            yield
        finally:
            with self._changed:
                self._left += length
                self._changed.notify_all()

    @contextmanager
    def _for_large_judging(self, path: str, seconds: float) -> Iterator[None]:
        with _Slot(self._large[path], seconds), _Slot(self._judged[path], seconds):
            yield


class _Slot:
    """One slot of a semaphore; a class, because each review passes here and a generator costs ten times as much."""

    __slots__ = ("_one", "_seconds")

    def __init__(self, one: threading.BoundedSemaphore, seconds: float) -> None:
        self._one, self._seconds = one, seconds

    def __enter__(self) -> None:
        if not self._one.acquire(timeout=self._seconds):
            raise OverloadedError

    def __exit__(self, *_: object) -> None:
        self._one.release()
