"""Backoff: how long to wait before trying again, as a pure sequence with jitter.

Jitter keeps the agents of a thousand nodes from knocking at a restarted API server in step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays that double from `base_s` to `most_s`, each shortened by up to half at random.

    `uniform` is random.uniform, or a stand-in in tests.
    """

    base_s: float = 0.1
    most_s: float = 30.0
    uniform: Callable[[float, float], float] = random.uniform
    attempts: int = field(default=0, init=False)

    def next_s(self) -> float:
        """Give the next delay in seconds."""
        delay = min(self.most_s, self.base_s * 2.0 ** min(self.attempts, 32))
        self.attempts += 1
        return delay * self.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again: the last try worked."""
        self.attempts = 0
