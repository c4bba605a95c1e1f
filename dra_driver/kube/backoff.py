"""How long to wait before trying again: a sequence of delays with full jitter.

Full jitter (any moment up to the step) keeps the agents of ten thousand nodes from all calling a restarted API server
at the same moment. A caller waits the whole time that the server asked for (`Retry-After`), and the jitter on top of
it: otherwise all callers that were refused in the same second would come back in the same second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Random delays below a step that grows from `base_s` to `max_s`, each time by `factor`, in seconds.

    `uniform` is random.uniform, or a substitute in tests.
    """

    base_s: float = 0.1
    max_s: float = 30.0
    factor: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform
    attempts: int = field(default=0, init=False)

    def next_s(self, *, least_s: float = 0.0) -> float:
        """Return the next delay in seconds: `least_s` plus the jitter of this step."""
        step = min(self.max_s, self.base_s * self.factor ** min(self.attempts, 32))
        self.attempts += 1
        return least_s + self.uniform(0.0, step)

    def reset(self) -> None:
        """Start over from the first step, because the last try worked."""
        self.attempts = 0
