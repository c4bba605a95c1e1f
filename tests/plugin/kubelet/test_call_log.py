"""Outcomes of calls: counted and logged by one thread, and none is lost at the end."""

import logging
import threading

import pytest

from dra_driver.plugin.kubelet.call_log import CallLog, CallOutcome
from dra_driver.telemetry.late_log import LateLog
from tests.support.waiting import until


class Counted(list[tuple[str, float, str]]):
    """Keeps what was counted."""

    def answered(self, rpc: str, seconds: float, code: str) -> None:
        self.append((rpc, seconds, code))


def outcome(number: int, *, code: str = "ok", err: str = "") -> CallOutcome:
    return CallOutcome("prepare", f"ns/claim-{number}", f"u{number}", 0.0123, 1, code, err)


def test_outcomes_from_many_threads_are_all_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dra_driver")
    counted = Counted()
    late_log = LateLog()
    outcomes = CallLog(counted, late_log)
    late_log.start()
    for burst in (range(40), range(40, 80)):  # the second one comes after the thread has fallen asleep again
        callers = [threading.Thread(target=outcomes.add, args=(outcome(number),)) for number in burst]
        for caller in callers:
            caller.start()
        until(lambda: len(counted) == burst.stop, what="all outcomes of the burst")  # noqa: B023 - called at once
    late_log.stop()
    assert counted == [("prepare", 0.0123, "ok")] * 80
    assert len([record for record in caplog.records if record.getMessage() == "claim answered"]) == 80


def test_outcomes_that_are_left_are_written_at_the_end_and_a_refusal_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted = Counted()
    late_log = LateLog()
    late_log.start()
    CallLog(counted, late_log).add(outcome(1, code="claim.not-found", err="claim ns/claim-1 does not exist"))
    late_log.stop()
    assert counted == [("prepare", 0.0123, "claim.not-found")]
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "claim refused")
    assert record.dra_fields == {  # type: ignore[attr-defined]
        "rpc": "prepare",
        "code": "claim.not-found",
        "err": "claim ns/claim-1 does not exist",
        "claim": "ns/claim-1",
        "claim_uid": "u1",
        "took_ms": 12.3,
    }


def test_a_line_is_written_at_once_while_the_thread_does_not_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dra_driver")
    LateLog().info(logging.getLogger("dra_driver.test"), "partition made", device="gpu-0")
    (record,) = caplog.records
    assert (record.getMessage(), record.dra_fields) == ("partition made", {"device": "gpu-0"})  # type: ignore[attr-defined]
