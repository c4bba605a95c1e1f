"""Answers that a page waits for until its test lets them come, as on a slow network.

In: a page and a pattern of addresses. Out: the requests to these addresses, each of which can be let go on.
"""

from __future__ import annotations

from collections.abc import Callable
from re import Pattern
from typing import Any


class HeldAnswers:
    """The requests of a page to some addresses, in the order in which they were made."""

    def __init__(self, page: Any, pattern: str | Pattern[str]) -> None:
        self._page, self._pattern = page, pattern
        self._held: list[Any] = []
        self._is_released = False
        page.route(pattern, self._hold)

    def _hold(self, route: Any) -> None:
        self._held.append(route)
        if self._is_released:
            route.continue_()

    def count(self) -> int:
        """Return how many requests have been made so far."""
        self._page.evaluate("0")  # what the browser has reported until now is handled here
        return len(self._held)

    def after(self, action: Callable[[], object]) -> None:
        """Do something, and wait until the page has made a request because of it."""
        with self._page.expect_request(self._pattern):
            action()

    def release(self) -> None:
        """Let all requests go on, and hold no more."""
        self._is_released = True
        for route in list(self._held):
            route.continue_()
