"""Refusal events: what people see on the Node while the API server, a webhook or a policy refuses our slices.

In: errors of attempts. Out: at most one Event for each cause, which is the error's code, in an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dra_driver.controller.pace import is_refusal
from dra_driver.kube.events import NodeEvents
from dra_driver.model.errors import ApiError

QUIET_SECONDS = 3600.0


class RefusalEvents:
    """Sends Events about one node. Only the writing thread uses it."""

    def __init__(self, events: NodeEvents, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._events, self._clock = events, clock
        self._sent_at: dict[str, float] = {}

    def report(self, error: ApiError) -> None:
        """Send an Event about a refusal, unless one with the same code was sent within an hour."""
        now = self._clock()
        if not is_refusal(error) or now - self._sent_at.get(error.code, float("-inf")) < QUIET_SECONDS:
            return
        self._sent_at[error.code] = now
        # The reason has the cause in it, because Events of one reason are held back for some time.
        cause = "".join(word.capitalize() for word in error.code.removeprefix("api.").split("-"))
        self._events.send(f"SlicesRefused{cause}", f"devices not published, tried again later: {error}", "Warning")
