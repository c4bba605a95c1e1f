"""Xid counts: how often each Xid was reported since the agent started, for the metrics.

If two sources report the same Xid, it is counted once: only the source with the larger count is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from dra_driver.hardware.evidence import XidReport

MAX_CODES = 256  # limit on different codes; NVIDIA's driver has 176


class XidCounts:
    """Counts by code. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, str]] = Counter()

    def count(self, xids: Iterable[XidReport]) -> None:
        """Count reports."""
        for xid in xids:
            slot = (xid.code, str(xid.source))
            if slot in self._counts or len(self._counts) < MAX_CODES:
                self._counts[slot] += 1

    @property
    def counts(self) -> Mapping[int, int]:
        """How often each code was reported."""
        found: dict[int, int] = {}
        for (code, _), count in self._counts.items():
            found[code] = max(found.get(code, 0), count)
        return found
