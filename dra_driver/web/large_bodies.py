"""Limit how much of what viewers send is in memory at a time: only some large bodies are read and answered at once.

In: the backend of a request with a large body. Out: a place, when its turn comes. Meanwhile its body is not read. The
viewers of one backend never have all places.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakKeyDictionary

from dra_driver.web.backend import Backend

_IN_ALL, _OF_BACKEND = 4, 2
_WAIT_SECONDS = 20.0


class TooManyLargeBodiesError(Exception):
    """No other large request was answered in time."""


class LargeBodies:
    """The places of one server. Call it in the event loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_IN_ALL)
        self._of_backends: WeakKeyDictionary[Backend, asyncio.Semaphore] = WeakKeyDictionary()

    @asynccontextmanager
    async def place(self, backend: Backend) -> AsyncIterator[None]:
        """Wait for a place, and hold it. Raises: TooManyLargeBodiesError."""
        own = self._of_backends.setdefault(backend, asyncio.Semaphore(_OF_BACKEND))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(_WAIT_SECONDS):
                    await held.enter_async_context(own)
                    await held.enter_async_context(self._places)
            except TimeoutError:
                raise TooManyLargeBodiesError from None
            yield
