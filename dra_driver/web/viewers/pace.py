"""The pace at which tokens that nobody knows yet are shown to the API server: by peer, and in all.

In: the address of a peer. Out: whether its token may be shown now. A peer that tries one token after the other then
takes little of the API server's time, and some of what is left for unknown tokens of other peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_MAX_PEERS = 1_000


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
