"""Server-sent events: the changes, sent to every page that is open.

In: notices. Out: for each page a stream of the latest state of each notice. A page that is slow misses notices in
between, but never the last one: a notice says what to ask again, not what is new.

Source: HTML Living Standard, server-sent events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

_BEAT_SECONDS = 15.0
MOST_STREAMS = 32
MayStay = Callable[[], Awaitable[bool]]


class Notices:
    """The latest notice of each name, and who listens."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, Any]] = {}
        self._number = 0
        self._changed = asyncio.Event()
        self._is_over = False
        self.streams = 0

    def post(self, name: str, value: Any) -> None:
        """Replace the notice of a name, and wake all streams. To be called in the loop."""
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

    async def stream(self, may_stay: MayStay | None = None) -> AsyncIterator[bytes]:
        """Yield events until the page is closed; the first ones are all notices as they are.

        `may_stay` is asked before anything is sent, at least every fifteen seconds; the stream ends once it returns
        false.
        """
        seen = 0
        self.streams += 1
        try:
            yield b"retry: 1000\n\n"
            while not self._is_over and (may_stay is None or await may_stay()):
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
