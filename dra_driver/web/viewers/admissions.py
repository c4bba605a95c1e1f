"""Admissions: the verdict on each viewer, kept for half a minute.

In: `PresentedIdentity`. Out: `AdmittedViewer`, or None. Rights that were taken away are no longer used once the verdict
is half a minute old. Many requests of one viewer wait for one verdict. While the API server does not answer, no viewer
is admitted on an old verdict.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dra_driver.web.viewers.identity import PresentedIdentity
from dra_driver.web.viewers.rights_resolvers import AdmittedViewer, RightsResolver

FRESH_SECONDS = 30.0
_MAX_KNOWN = 1_000
_AT_ONCE = 4  # verdicts that are asked for at the same time


class Admissions:
    """The verdicts, by the digest of an identity."""

    def __init__(self, resolver: RightsResolver, clock: Callable[[], float] = time.monotonic) -> None:
        self._resolver, self._clock = resolver, clock
        self._known: dict[str, tuple[float, AdmittedViewer | None]] = {}
        self._asked: dict[str, asyncio.Task[AdmittedViewer | None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def admit(self, one: PresentedIdentity) -> AdmittedViewer | None:
        """Return the viewer; None if the cluster does not know them. Raises: DriverError if that can't be found out."""
        digest = one.digest
        at, admitted = self._known.get(digest, (float("-inf"), None))
        if self._clock() - at < FRESH_SECONDS:
            return admitted
        if digest not in self._asked:
            self._asked[digest] = asyncio.create_task(self._resolved(digest, one))
        return await asyncio.shield(self._asked[digest])

    async def _resolved(self, digest: str, one: PresentedIdentity) -> AdmittedViewer | None:
        try:
            async with self._places:
                began = self._clock()
                admitted = await asyncio.to_thread(self._resolver.resolve, one)
            self._known.pop(digest, None)  # removed first, so that it becomes the last entry, which is dropped last
            self._known[digest] = began, admitted
            while len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            return admitted
        finally:
            del self._asked[digest]
