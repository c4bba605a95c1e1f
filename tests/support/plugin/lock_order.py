"""The order of locks, recorded: what each thread holds when it takes more, in every agent of this process.

Whoever takes locks in another order than all others could wait for them while they wait for it. A test can't show that
this never happens, but it shows what was held when something was taken, and that fails here whoever won the race.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from dra_driver.node.ledger import locks

_Holder = tuple[int, int]  # a thread, and the locks of an agent: in tests, one thread may play two agents
_RANKS = {"claim": 0, "device": 1, "gpu": 2}  # the locks of single effects come last


def rank(name: str) -> int:
    """Return the place of a lock in the order: nobody takes one while holding one of the same or a later place."""
    return _RANKS.get(name.partition("/")[0], len(_RANKS))


class LockOrder:
    """What each thread of each agent holds now, every name that was asked for, and the inversions that were seen."""

    def __init__(self) -> None:
        self._held: dict[_Holder, list[str]] = defaultdict(list)
        self._mutex = threading.Lock()
        self.inversions: list[str] = []
        self.wanted: list[str] = []

    def taking(self, agent: locks.NodeLocks, names: list[str]) -> None:
        """Record an inversion if this thread holds a lock that comes with or after these, taken in one hold."""
        with self._mutex:
            held = self._held[threading.get_ident(), id(agent)]
            self.wanted += names
            if [rank(name) for name in names] != sorted(map(rank, names)):
                self.inversions.append(f"one hold takes {', '.join(names)}")
            if held and names and max(map(rank, held)) >= min(map(rank, names)):
                self.inversions.append(f"{', '.join(names)} taken while holding {', '.join(held)}")

    def taken(self, agent: locks.NodeLocks, names: list[str]) -> None:
        """Record that this thread holds these locks."""
        with self._mutex:
            self._held[threading.get_ident(), id(agent)] += names

    def released(self, agent: locks.NodeLocks, names: list[str]) -> None:
        """Record that this thread holds these locks no more; it must be the one that took them."""
        with self._mutex:
            held = self._held[threading.get_ident(), id(agent)]
            for name in names:
                if name in held:
                    held.remove(name)
                else:
                    self.inversions.append(f"{name} released by another thread than the one that took it")


@pytest.fixture(autouse=True)
def lock_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[LockOrder]:
    """Record all holds in this process during a test, which fails at its end if one was taken out of order."""
    order, enter, leave = LockOrder(), locks._HeldLocks.__enter__, locks._HeldLocks.__exit__

    def recorded_enter(self: locks._HeldLocks) -> None:
        order.taking(self._locks, self._names)
        order.taken(self._locks, self._names)  # before, because a hold that fails releases what it has taken
        missing = [*self._names]
        try:
            enter(self)
            missing = []
        finally:
            order.released(self._locks, missing)

    def recorded_exit(self: locks._HeldLocks, *values: object) -> None:
        names = [*self._taken]
        leave(self, *values)
        if names == self._names:  # otherwise the hold failed, and `recorded_enter` has recorded that
            order.released(self._locks, names)

    monkeypatch.setattr(locks._HeldLocks, "__enter__", recorded_enter)
    monkeypatch.setattr(locks._HeldLocks, "__exit__", recorded_exit)
    yield order
    assert not order.inversions, order.inversions
