"""A cache of a limited number of values by key; the oldest value goes first."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FifoCache(Generic[K, V]):
    """At most `maximum` values; the value that was stored first is dropped first. Any thread may use it."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._mutex = threading.Lock()
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if there is none."""
        return self._values.get(key)

    def keep(self, key: K, value: V) -> None:
        """Store a value, replacing any earlier value of the key."""
        with self._mutex:
            values = self._values
            values.pop(key, None)
            values[key] = value
            if len(values) > self._maximum:
                del values[next(iter(values))]
