"""Backoff: how long to wait before trying again, as a pure sequence with full jitter.

Full jitter (any moment up to the step) keeps the agents of ten thousand nodes from knocking at a restarted API server
in step. What the server asked for (`Retry-After`) is waited in full, and the jitter comes on top: everybody who was
refused in the same second would otherwise come back in the same second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays at random below a step that doubles from `base_s` to `most_s`.

    `uniform` is random.uniform, or a stand-in in tests.
    """

    base_s: float = 0.1
    most_s: float = 30.0
    uniform: Callable[[float, float], float] = random.uniform
    attempts: int = field(default=0, init=False)

    def next_s(self, *, least_s: float = 0.0) -> float:
        """Return the next delay in seconds: `least_s`, and the jitter of this step on top."""
        step = min(self.most_s, self.base_s * 2.0 ** min(self.attempts, 32))
        self.attempts += 1
        return least_s + self.uniform(0.0, step)

    def reset(self) -> None:
        """Begin again: the last try worked."""
        self.attempts = 0
