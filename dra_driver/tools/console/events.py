"""Server-sent events: every open page is told what has changed.

In: notices. Out: for each page a stream with the latest notice of each name. A slow page may miss a notice, but never
the last one of its name; that is enough, because a notice only says what to ask for again, not what is new.

Source: HTML Living Standard, server-sent events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dra_driver.kube import paths

_BEAT_SECONDS = 15.0
MAX_STREAMS = 32
MayContinue = Callable[[], Awaitable[bool]]


class Notices:
    """The latest notice of each name, and the streams that send them."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, Any]] = {}
        self._number = 0
        self._changed = asyncio.Event()
        self._is_over = False
        self.streams = 0

    def post(self, name: str, value: Any) -> None:
        """Replace the notice of a name, and wake all streams. Call it in the event loop."""
        self._number += 1
        self._latest[name] = (self._number, value)
        self._wake()

    def latest(self, name: str) -> Any:
        """Return the notice of a name; None if there is none yet."""
        return self._latest[name][1] if name in self._latest else None

    def end(self) -> None:
        """End all streams."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(self, may_continue: MayContinue | None = None) -> AsyncIterator[bytes]:
        """Yield events until the page is closed; the first ones are the latest notices of all names.

        `may_continue` is called before anything is sent, and at least every fifteen seconds; the stream ends once it
        returns False.
        """
        seen = 0
        self.streams += 1
        try:
            yield b"retry: 1000\n\n"
            while not self._is_over and (may_continue is None or await may_continue()):
                changed = self._changed
                for name, (number, value) in list(self._latest.items()):
                    if number > seen:
                        yield f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()
                seen = self._number
                try:
                    async with asyncio.timeout(_BEAT_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.streams -= 1


# Places for work: how much of one kind all backends do at the same time, and how much of it one of them.

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


# The kinds that the console watches: their paths in the API, and which of their objects are kept.

PENDING = "status.phase=Pending"  # only these pods are kept; any other is read when a viewer opens its claim


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """A kind that is watched: its path, whether it has namespaces, and the field selector for its objects."""

    name: str
    path: str
    has_namespaces: bool = True
    fields: str = ""


KINDS = (
    WatchedKind("Node", paths.NODES, has_namespaces=False),
    WatchedKind("ResourceSlice", paths.SLICES, has_namespaces=False),
    WatchedKind("DeviceClass", paths.CLASSES, has_namespaces=False),
    WatchedKind("ResourceClaim", paths.CLAIMS),
    WatchedKind("ResourceClaimTemplate", paths.TEMPLATES),
    WatchedKind("Pod", paths.PODS, fields=PENDING),
)
