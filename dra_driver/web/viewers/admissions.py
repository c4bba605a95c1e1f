"""Admissions: the verdict on each viewer, kept for half a minute.

In: `PresentedIdentity`. Out: `AdmittedViewer`, or None. Rights that were taken away are no longer used once the verdict
is half a minute old. Many requests of one viewer wait for one verdict. While the API server does not answer, no viewer
is admitted on an old verdict. Tokens that were never accepted are asked about in threads of their own and at a limited
pace, by peer and in all, so that viewers who were admitted before do not wait for them, and a peer that tries one token
after the other takes little of the API server's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dra_driver.web.viewers.fairness import to_give_up
from dra_driver.web.viewers.identity import PresentedIdentity
from dra_driver.web.viewers.rights_resolvers import AdmittedViewer, RightsResolver

_MAX_PEERS = 1_000
FRESH_SECONDS = 30.0
_MAX_KNOWN = 1_000  # accepted identities; and as many refused ones
_MAX_OF_USER = 16
_AT_ONCE = 4  # verdicts that are asked for at the same time: of known viewers, and of unknown ones


@dataclass(slots=True)
class TokenBucket:
    """`burst` at once, and then `rate` a second."""

    burst: float
    rate: float
    level: float
    filled_at: float

    def fill(self, now: float) -> float:
        """Return how many may pass now."""
        self.level = min(self.burst, self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now
        return self.level


class Pace:
    """The buckets of all peers, and the one that they share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_all = TokenBucket(60.0, 4.0, 60.0, clock())
        self._peers: dict[str, TokenBucket] = {}

    def may_pass(self, peer: str) -> bool:
        """Return whether a token of a peer may be shown to the API server now, and count it if it may."""
        now = self._clock()
        own = self._peers.pop(peer, None) or TokenBucket(20.0, 1.0, 20.0, now)
        self._peers[peer] = own  # at the end, so that it is dropped last
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        if min(own.fill(now), self._in_all.fill(now)) < 1.0:
            return False
        own.level -= 1.0
        self._in_all.level -= 1.0
        return True


class TooFastError(Exception):
    """Too many tokens that were never accepted came at the same time."""


class Admissions:
    """The verdicts, by the digest of an identity."""

    def __init__(self, resolver: RightsResolver, clock: Callable[[], float] = time.monotonic) -> None:
        self._resolver, self._clock = resolver, clock
        self._known: dict[str, tuple[float, AdmittedViewer]] = {}
        self._refused: dict[str, float] = {}
        self._asked: dict[str, asyncio.Task[AdmittedViewer | None]] = {}
        self._pace = Pace(clock)
        self._for_known = ThreadPoolExecutor(_AT_ONCE, "known viewers")
        self._for_unknown = ThreadPoolExecutor(_AT_ONCE, "unknown viewers")

    async def admit(self, one: PresentedIdentity, peer: str = "") -> AdmittedViewer | None:
        """Return the viewer; None if the cluster does not know them.

        Raises: DriverError if that can't be found out; TooFastError.
        """
        digest, now = one.digest, self._clock()
        at, admitted = self._known.get(digest, (float("-inf"), None))
        if now - at < FRESH_SECONDS:
            return admitted
        if now - self._refused.get(digest, float("-inf")) < FRESH_SECONDS:
            return None
        if digest not in self._asked:
            is_known = admitted is not None or bool(one.user)  # a name comes from a proxy that has proved its own
            if not is_known and not self._pace.may_pass(peer):
                raise TooFastError
            self._asked[digest] = asyncio.create_task(self._resolved(digest, one, is_known=is_known))
        return await asyncio.shield(self._asked[digest])

    async def _resolved(self, digest: str, one: PresentedIdentity, *, is_known: bool) -> AdmittedViewer | None:
        threads = self._for_known if is_known else self._for_unknown
        try:
            began, admitted = await asyncio.get_running_loop().run_in_executor(threads, self._resolve, one)
            self._keep(digest, began, admitted)
            return admitted
        finally:
            del self._asked[digest]

    def _resolve(self, one: PresentedIdentity) -> tuple[float, AdmittedViewer | None]:
        return self._clock(), self._resolver.resolve(one)

    def _keep(self, digest: str, began: float, admitted: AdmittedViewer | None) -> None:
        self._known.pop(digest, None)  # removed first, so that it becomes the last entry, which is dropped last
        if admitted is None:
            self._refused.pop(digest, None)
            self._refused[digest] = began
            if len(self._refused) > _MAX_KNOWN:
                del self._refused[next(iter(self._refused))]
            return
        own = {key: (admitted.user, at) for key, (at, other) in self._known.items() if other.user == admitted.user}
        if len(own) >= _MAX_OF_USER:
            del self._known[to_give_up(own)]
        elif len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[digest] = began, admitted

    def close(self) -> None:
        """End the threads."""
        for one in (self._for_known, self._for_unknown):
            one.shutdown(wait=False, cancel_futures=True)
