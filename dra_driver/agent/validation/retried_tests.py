"""RetriedTests: the tests that could not run, and when each is tried again.

A test that could not run is tried again, because a fabric manager may start minutes after the GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import dataclass

RETRY_SECONDS, MAX_TRIES = 60.0, 10


@dataclass(frozen=True, slots=True)
class _Tries:
    """How often a test could not run, and when (monotonic) it is tried again."""

    count: int
    due: float


class RetriedTests:
    """The devices whose test could not run, by UUID. After so many tries a test is not tried again."""

    def __init__(self) -> None:
        self._tries: dict[str, _Tries] = {}

    def __contains__(self, uuid: str) -> bool:
        """Return whether the test of a device could not run."""
        return uuid in self._tries

    def add(self, uuid: str) -> None:
        """Record that the test of a device could not run now."""
        count = self._tries[uuid].count + 1 if uuid in self._tries else 1
        due = time.monotonic() + RETRY_SECONDS if count < MAX_TRIES else float("inf")
        self._tries[uuid] = _Tries(min(count, MAX_TRIES), due)

    def forget(self, uuid: str) -> None:
        """Forget a device: it has been tested, is in use, or has to be tested anew."""
        self._tries.pop(uuid, None)

    def due(self, among: Container[str]) -> list[str]:
        """Return the devices, of these, whose test is to be tried now."""
        now = time.monotonic()
        return [uuid for uuid, one in self._tries.items() if uuid in among and one.due <= now]

    def pause_s(self, among: Container[str]) -> float | None:
        """Return the time until a test of one of these devices is tried again; None for never."""
        dues = [one.due for uuid, one in self._tries.items() if uuid in among and one.count < MAX_TRIES]
        return max(0.0, min(dues) - time.monotonic()) if dues else None
