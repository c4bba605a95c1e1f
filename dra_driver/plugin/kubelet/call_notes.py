"""CallNotes: what was answered to the kubelet, counted and logged a moment later.

The kubelet waits for an answer, and often calls again at once. A log line and two metrics cost a quarter of what an
Unprepare does, less than half of that where many are written one after the other: so they are written together, by one
thread, at most `LAG_SECONDS` after the first.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import NamedTuple, Protocol

from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

LAG_SECONDS = 0.25  # a turn of this thread delays the call that runs meanwhile, so there are few


class AnswerListener(Protocol):
    """Is called, in one thread, after each call of the kubelet was answered."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        """React to a call that was answered for one claim after `took_s` seconds; the code is an error's, or "ok"."""


class CallNote(NamedTuple):
    """What became of one claim in one call; `err` is the text of the error, `took_s` is in seconds."""

    rpc: str
    claim: str
    uid: str
    took_s: float
    devices: int
    code: str
    err: str


class CallNotes:
    """Passes each note to the listener, and logs it. Any thread may add notes."""

    def __init__(self, listener: AnswerListener | None) -> None:
        self._listener = listener
        self._notes: deque[CallNote] = deque()
        self._is_awake = self._has_lagged = False
        self._loop = Loop("call-notes", self._turn, failure="calls not logged")

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def stop(self) -> None:
        """End the thread, and write what is left."""
        self._loop.stop(1.0)
        self._write()

    def add(self, note: CallNote) -> None:
        """Keep a note until it is written."""
        self._notes.append(note)
        if not self._is_awake:
            self._is_awake = True
            self._loop.wake()

    def _turn(self) -> float:
        if self._is_awake and not self._has_lagged:
            self._has_lagged = True
            return LAG_SECONDS
        self._is_awake = self._has_lagged = False  # set first: a later note wakes the thread
        self._write()
        return math.inf

    def _write(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            if self._listener is not None:
                self._listener.answered(note.rpc, note.took_s, note.code)
            record = {"claim": note.claim, "claim_uid": note.uid, "took_ms": round(note.took_s * 1000, 1)}
            if note.err:
                log.warning("claim refused", extra=fields(rpc=note.rpc, code=note.code, err=note.err, **record))
            else:
                log.info("claim answered", extra=fields(rpc=note.rpc, devices=note.devices, **record))
