"""Patience: how long selectors may be worked on while a caller waits.

In: a check that raises when the time is up. Out: nothing. Compiling, evaluating and linting call the check every now
and then, in the thread that set it. In a thread without a check, the server's own cost limit is the only bound.
The check never changes a verdict: the caller gets either the same verdict or none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Check = Callable[[], None]

# While a caller waits, a selector whose worst case costs more than this is evaluated step by step, because the quick
# evaluator can't be stopped. A cost of this size takes a few milliseconds.
QUICK_COST = 20_000
STEPS = 256  # evaluation steps between two checks: less than a millisecond


class _HeldCheck(threading.local):
    check: Check | None = None


_held = _HeldCheck()


class OutOfPatienceError(Exception):
    """The time is up. Code between the caller that set the check and the work must not take this for a verdict."""


@contextmanager
def patience(check: Check) -> Iterator[None]:
    """Call `check` from all work on selectors in this thread; it stops the work by raising OutOfPatienceError."""
    before, _held.check = _held.check, check
    try:
        yield
    finally:
        _held.check = before


def held() -> Check | None:
    """Return the check of this thread, or None if no caller waits."""
    return _held.check


def ask() -> None:
    """Call the check of this thread, if there is one. Raises: OutOfPatienceError."""
    check = _held.check
    if check is not None:
        check()
