"""Call log: counts and logs the kubelet's calls, a moment after they were answered.

The kubelet waits for an answer, and often calls again at once. A log line and two metrics take a quarter of the time of
an Unprepare, and less than half of that if many are written one after the other. So one thread writes them together, at
most `LAG_SECONDS` after the first.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import NamedTuple, Protocol

from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

LAG_SECONDS = 0.25  # each turn of this thread delays a call that runs at the same time, so there are few turns


class AnswerListener(Protocol):
    """Is called, always from the same thread, after a call of the kubelet was answered."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """React to a call that was answered for one claim after `seconds`; the code is an error's, or "ok"."""


class CallOutcome(NamedTuple):
    """The outcome of one call for one claim; `err` is the text of the error, and `took_s` is in seconds."""

    rpc: str
    claim: str
    uid: str
    took_s: float
    devices: int
    code: str
    err: str


class CallLog:
    """Passes each outcome to the listener, and logs it. Any thread may add outcomes."""

    def __init__(self, listener: AnswerListener | None) -> None:
        self._listener = listener
        self._outcomes: deque[CallOutcome] = deque()
        self._is_awake = self._has_lagged = False
        self._loop = Loop("call-log", self._turn, failure="calls not logged")

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def stop(self) -> None:
        """End the thread, and write what is left."""
        self._loop.stop(1.0)
        self._write()

    def add(self, outcome: CallOutcome) -> None:
        """Keep an outcome until it is written."""
        self._outcomes.append(outcome)
        if not self._is_awake:
            self._is_awake = True
            self._loop.wake()

    def _turn(self) -> float:
        if self._is_awake and not self._has_lagged:
            self._has_lagged = True
            return LAG_SECONDS
        self._is_awake = self._has_lagged = False  # set before writing, so that a later outcome wakes the thread
        self._write()
        return math.inf

    def _write(self) -> None:
        while self._outcomes:
            outcome = self._outcomes.popleft()
            if self._listener is not None:
                self._listener.answered(outcome.rpc, outcome.took_s, outcome.code)
            record = {"claim": outcome.claim, "claim_uid": outcome.uid, "took_ms": round(outcome.took_s * 1000, 1)}
            if outcome.err:
                log.warning(
                    "claim refused", extra=fields(rpc=outcome.rpc, code=outcome.code, err=outcome.err, **record)
                )
            else:
                log.info("claim answered", extra=fields(rpc=outcome.rpc, devices=outcome.devices, **record))
