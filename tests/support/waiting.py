"""Waiting for something that another thread does: poll with a deadline, never sleep to be right."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, timeout_s: float = 30.0, what: str = "") -> None:
    """Return when the condition is true. Raises: AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(0.005)
