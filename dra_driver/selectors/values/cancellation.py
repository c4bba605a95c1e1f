"""Cancellation of work on selectors when the time of a waiting caller is up.

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


class _ThreadCheck(threading.local):
    check: Check | None = None


_thread_check = _ThreadCheck()


class EvaluationCancelledError(Exception):
    """The time is up. Code between the caller that set the check and the work must not take this for a verdict."""


@contextmanager
def cancellable(check: Check) -> Iterator[None]:
    """Call `check` from all work on selectors in this thread; it stops the work by raising EvaluationCancelledError."""
    before, _thread_check.check = _thread_check.check, check
    try:
        yield
    finally:
        _thread_check.check = before


def cancellation_check() -> Check | None:
    """Return the check of this thread, or None if no caller waits."""
    return _thread_check.check


def check_cancelled() -> None:
    """Call the check of this thread, if there is one. Raises: EvaluationCancelledError."""
    check = _thread_check.check
    if check is not None:
        check()
