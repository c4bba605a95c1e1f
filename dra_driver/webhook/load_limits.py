"""Limit how much of what callers send is in memory at a time, and how many reviews are worked on.

In: the length of a body. Out: permission to read it, or to decode and judge it, when its turn comes. A small body needs
no permission to be read, since the number of connections is limited. A large one counts with all its bytes, and only
one is decoded at a time, because decoded values take ten times as much memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

SMALL_BYTES = 16 * 1024
MAX_LARGE_BYTES = 8 << 20  # of all large bodies together
_MAX_REVIEWS = 8  # at a time, for each path
_FREE = nullcontext()


class OverloadedError(Exception):
    """A limit was reached, and no room was made in time."""


class LoadLimits:
    """The memory limits of one server. Any thread may ask."""

    def __init__(self, paths: tuple[str, ...], max_bytes: int = MAX_LARGE_BYTES) -> None:
        self._left = max_bytes
        self._changed = threading.Condition()
        self._reviews = {path: threading.BoundedSemaphore(_MAX_REVIEWS) for path in paths}
        self._large = {path: threading.BoundedSemaphore(1) for path in paths}

    def for_body(self, length: int, seconds: float) -> AbstractContextManager[None]:
        """Return a context that reserves memory for a body while it is read and judged.

        Entering raises: OverloadedError.
        """
        return _FREE if length <= SMALL_BYTES else self._for_large_body(length, seconds)

    def for_review(self, path: str, length: int, seconds: float) -> AbstractContextManager[None]:
        """Return a context that waits until a review of this path may be decoded. Entering raises: OverloadedError."""
        if length <= SMALL_BYTES:
            return _Slot(self._reviews[path], seconds)
        return self._for_large_review(path, seconds)

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
    def _for_large_review(self, path: str, seconds: float) -> Iterator[None]:
        with _Slot(self._large[path], seconds), _Slot(self._reviews[path], seconds):
            yield


class _Slot:
    """One slot of a semaphore. Every review takes one; a generator in place of the class costs ten times as much."""

    __slots__ = ("_one", "_seconds")

    def __init__(self, one: threading.BoundedSemaphore, seconds: float) -> None:
        self._one, self._seconds = one, seconds

    def __enter__(self) -> None:
        if not self._one.acquire(timeout=self._seconds):
            raise OverloadedError

    def __exit__(self, *_: object) -> None:
        self._one.release()
