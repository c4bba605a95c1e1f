"""Server-sent events: every open page is told what has changed.

In: notices. Out: for each page a stream with the latest notice of each name. A slow page may miss a notice, but never
the last one of its name; that is enough, because a notice only says what to ask for again, not what is new.

Source: HTML Living Standard, server-sent events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

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
