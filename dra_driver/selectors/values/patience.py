"""Patience: how long work on selectors may go on for somebody who waits.

In: a check that raises when it has been enough. Out: nothing; compiling, evaluating and linting ask it now and then, in
the thread that holds it. Without one nothing is asked and nothing is bounded but by the server's own cost limit.
A verdict never changes: there is either the same one, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Check = Callable[[], None]

# A selector whose worst case costs more than this is evaluated step by step while somebody waits: the quick way to the
# same verdict can't be stopped. It stands for some milliseconds.
QUICK_COST = 20_000
STEPS = 256  # of an evaluation between two checks: less than a millisecond


class _Held(threading.local):
    check: Check | None = None


_held = _Held()


class OutOfPatienceError(Exception):
    """It has been enough. Nothing between whoever set the patience and the work may take it for a verdict."""


@contextmanager
def patience(check: Check) -> Iterator[None]:
    """Have `check` asked by all work on selectors in this thread; it raises OutOfPatienceError to stop it."""
    before, _held.check = _held.check, check
    try:
        yield
    finally:
        _held.check = before


def held() -> Check | None:
    """Return the check of this thread, None where nobody waits."""
    return _held.check


def ask() -> None:
    """Ask the check of this thread, if there is one. Raises: OutOfPatienceError."""
    check = _held.check
    if check is not None:
        check()
