"""Waiting for something that another thread or process does: poll with a deadline, never sleep to be right."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
# Ends only a wait that would fail anyway: a machine with nothing else to do meets a condition within a second or two.
PATIENCE_S = 60.0


def until(condition: Callable[[], T], what: object = "", *, timeout_s: float = PATIENCE_S) -> T:
    """Poll `condition` until it returns something true, and return that.

    Raises: AssertionError after `timeout_s`, with `what` was waited for (or the condition's own source) and what the
    condition returned last.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what or _source(condition)}; last seen: {found!r}")
        time.sleep(0.005)
    return found


def _source(condition: Callable[[], object]) -> str:
    with suppress(OSError, TypeError):
        return inspect.getsource(condition).strip()
    return repr(condition)


def unhindered(call: Callable[[], T]) -> T:
    """Return what `call` returns: it must not wait for anything that lasts until the test ends it.

    Raises: AssertionError when the call is still waiting after `PATIENCE_S`; what the call raises.
    """
    outcome: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if failed:
        raise failed[0]
    assert not thread.is_alive(), f"still waiting after {PATIENCE_S:.0f} s: {_source(call)}"
    return outcome[0]
