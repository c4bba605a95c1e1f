"""Call log: counts and logs the kubelet's calls, a moment after they were answered."""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from dra_driver.telemetry.late_log import LateLog
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


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
    """Passes each outcome to the listener, and logs it, by way of `late_log`. Any thread may add outcomes."""

    def __init__(self, listener: AnswerListener | None, late_log: LateLog) -> None:
        self._listener, self._late_log = listener, late_log

    def add(self, outcome: CallOutcome) -> None:
        """Keep an outcome until it is written."""
        self._late_log.add(self._write, outcome)

    def _write(self, outcome: CallOutcome) -> None:
        if self._listener is not None:
            self._listener.answered(outcome.rpc, outcome.took_s, outcome.code)
        record = {"claim": outcome.claim, "claim_uid": outcome.uid, "took_ms": round(outcome.took_s * 1000, 1)}
        if outcome.err:
            log.warning("claim refused", extra=fields(rpc=outcome.rpc, code=outcome.code, err=outcome.err, **record))
        else:
            log.info("claim answered", extra=fields(rpc=outcome.rpc, devices=outcome.devices, **record))
