"""Recent claims: an answer that equals the last one byte for byte is neither parsed nor checked a second time.

In: the bodies of answers. Out: claims, and the same object as before for the same bytes. The resource version is among
these bytes, so a claim that was changed in any way is read again. The server is asked each time. No caller that gets a
claim may change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dra_driver.kube.answers import parse
from dra_driver.kube.shapes import check_claim
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.model.wire import ClaimWire

MAX_CLAIMS = 16  # as many as a node has GPUs
CLAIM_MEMORY = 4 << 20  # of one parsed claim: many are read at once; one with a few devices takes 50 KiB
MAX_BYTES = 16 * 1024  # a larger claim is not kept; one with a few devices and their owners has 2 KiB


@dataclass(slots=True)
class ClaimReading:
    """One claim being read: the body and the claim of the last answer, then those of this one."""

    body: bytes = b""
    claim: ClaimWire | None = None
    is_known: bool = False

    def parse(self, body: bytes) -> Any:
        """Return the decoded body, or the claim of the last answer if the body is the same. Raises: ValueError."""
        self.is_known = self.claim is not None and body == self.body
        if self.is_known:
            return self.claim
        self.body = body
        return parse(body, memory=CLAIM_MEMORY)


class RecentClaims:
    """The claims that were read last, by namespace and name. Any thread may use it."""

    def __init__(self) -> None:
        self._kept: FifoCache[tuple[str, str], tuple[bytes, ClaimWire]] = FifoCache(MAX_CLAIMS)

    def reading(self, namespace: str, name: str) -> ClaimReading:
        """Return the reading that parses the next answer about a claim."""
        kept = self._kept.get((namespace, name))
        return ClaimReading(*kept) if kept else ClaimReading()

    def checked(self, reading: ClaimReading, claim: ClaimWire, namespace: str, name: str) -> ClaimWire:
        """Return the claim that was read, after checking it if it is new. Raises: ApiError("api.bad-answer")."""
        if reading.is_known:
            return claim
        check_claim(claim, namespace, name)
        if len(reading.body) <= MAX_BYTES:
            self._kept.keep((namespace, name), (reading.body, claim))
        return claim
