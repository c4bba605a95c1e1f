"""Recent: the values that were kept last, by key, at most so many."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values; the one that was kept the longest ago goes first. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mutex = threading.Lock()
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key, None where none is kept."""
        return self._values.get(key)

    def keep(self, key: K, value: V) -> None:
        """Keep a value in the place of the one that the key had."""
        with self._mutex:
            values = self._values
            values.pop(key, None)
            values[key] = value
            if len(values) > self._most:
                del values[next(iter(values))]
