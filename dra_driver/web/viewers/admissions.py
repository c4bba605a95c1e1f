"""Admissions: the verdict on each viewer, kept for some seconds.

In: `Presented`. Out: `Admitted`, or None. A verdict is used for half a minute, so rights that were taken away end then.
Many requests of one viewer wait for one verdict. While the API server does not answer, no viewer is admitted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dra_driver.web.viewers.identity import Presented
from dra_driver.web.viewers.judges import Admitted, RightsJudge

FRESH_SECONDS = 30.0
_MOST_KNOWN = 1_000
_AT_ONCE = 4  # verdicts that are asked for at the same time


class Admissions:
    """The verdicts."""

    def __init__(self, judge: RightsJudge, clock: Callable[[], float] = time.monotonic) -> None:
        self._judge, self._clock = judge, clock
        self._known: dict[str, tuple[float, Admitted | None]] = {}
        self._asked: dict[str, asyncio.Task[Admitted | None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def admit(self, one: Presented) -> Admitted | None:
        """Return what a viewer may read; None for a stranger. Raises: DriverError if that can't be found out."""
        digest = one.digest
        at, admitted = self._known.get(digest, (float("-inf"), None))
        if self._clock() - at < FRESH_SECONDS:
            return admitted
        if digest not in self._asked:
            self._asked[digest] = asyncio.create_task(self._judged(digest, one))
        return await asyncio.shield(self._asked[digest])

    async def _judged(self, digest: str, one: Presented) -> Admitted | None:
        try:
            async with self._places:
                began = self._clock()
                admitted = await asyncio.to_thread(self._judge.judge, one)
            self._known.pop(digest, None)  # removed and added again, so that it is the newest
            self._known[digest] = began, admitted
            while len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            return admitted
        finally:
            del self._asked[digest]
