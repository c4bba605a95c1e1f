"""Limit how much of what callers send is in memory at a time, and how many reviews are worked on.

In: the length of a body. Out: permission to read it, or to decode and judge it, when its turn comes. A small body needs
no permission to be read, since the number of connections is limited. A large one counts with all its bytes, and only
one is decoded at a time, because decoded values take ten times as much memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

SMALL_BYTES = 16 * 1024
MAX_LARGE_BYTES = 8 << 20  # of all large bodies together
MAX_REVIEWS = 8  # at a time, for each path
_WAIT_SECONDS = 3.0  # until there is room for a large body, or for one more review


class OverloadedError(Exception):
    """A limit was reached, and no room was made in time."""


class LoadLimits:
    """The memory limits of one server. Only its event loop may ask."""

    def __init__(
        self, paths: tuple[str, ...], *, max_bytes: int = MAX_LARGE_BYTES, wait_s: float = _WAIT_SECONDS
    ) -> None:
        self._left, self._wait_s = max_bytes, wait_s
        self._changed = asyncio.Condition()
        self._reviews = {path: asyncio.Semaphore(MAX_REVIEWS) for path in paths}
        self._large = {path: asyncio.Semaphore(1) for path in paths}

    @asynccontextmanager
    async def for_body(self, length: int) -> AsyncIterator[None]:
        """Reserve memory for a body while it is read and judged. Entering raises: OverloadedError."""
        counted = length if length > SMALL_BYTES else 0
        async with self._changed, self._in_time():
            await self._changed.wait_for(lambda: not counted or self._left >= counted)
            self._left -= counted
        try:
            yield
        finally:
            async with self._changed:
                self._left += counted
                self._changed.notify_all()

    @asynccontextmanager
    async def for_review(self, path: str, length: int) -> AsyncIterator[None]:
        """Wait until a review of this path may be decoded. Entering raises: OverloadedError."""
        turns = [self._reviews[path]] if length <= SMALL_BYTES else [self._large[path], self._reviews[path]]
        async with AsyncExitStack() as held:
            async with self._in_time():
                for turn in turns:
                    await held.enter_async_context(turn)
            yield

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait_s):
                yield
        except TimeoutError as error:
            raise OverloadedError from error
