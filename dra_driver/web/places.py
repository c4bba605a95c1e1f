"""Places for work: how much of one kind all backends do at the same time, and how much of it one of them.

In: who wants to begin. Out: a place, when its turn comes: backends take turns, however much one of them wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

_WAIT_SECONDS = 30.0


class NoPlaceError(Exception):
    """Too much work of one backend waits already, or has waited for too long."""


class SharedPlaces:
    """The places that all backends share. Of one backend, `of_one` are at work at the same time, and `waiting` more."""

    def __init__(self, in_all: int, of_one: int, waiting: int) -> None:
        self.in_all = asyncio.Semaphore(in_all)
        self._of_one, self._waiting = of_one, waiting

    def of_backend(self) -> BackendPlaces:
        """Return the places of one backend."""
        return BackendPlaces(self.in_all, self._of_one, self._waiting)


class BackendPlaces:
    """The places of one backend."""

    def __init__(self, in_all: asyncio.Semaphore, at_once: int, waiting: int) -> None:
        self._in_all, self._own = in_all, asyncio.Semaphore(at_once)
        self._left = at_once + waiting

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it. Raises: NoPlaceError."""
        if not self._left:
            raise NoPlaceError
        self._left -= 1
        try:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(_WAIT_SECONDS):
                        await held.enter_async_context(self._own)
                        await held.enter_async_context(self._in_all)
                except TimeoutError:
                    raise NoPlaceError from None
                yield
        finally:
            self._left += 1
