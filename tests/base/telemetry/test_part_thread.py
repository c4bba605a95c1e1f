"""The threads that the process needs: whether they run, as the probe of liveness shows it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.base.telemetry import logs, status_server
from dra_driver.base.telemetry.logs import Loop, PartThread
from dra_driver.base.telemetry.status_server import QUICK_PAGES
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def needed(monkeypatch):
    needed = logs.NeededParts()  # apart from what other tests of this process have started
    for module in (logs, status_server):
        monkeypatch.setattr(module, "NEEDED", needed)
    return needed


def test_a_thread_that_has_ended_is_a_fault_until_it_is_released(needed):
    thread = PartThread("short", lambda _: None)
    thread.start()
    thread.join()
    assert needed.faults() == ("the thread short has ended",)
    page = QUICK_PAGES["/healthz"]
    assert (page.status, page.body) == (503, b"the thread short has ended\n")
    thread.release()
    assert (QUICK_PAGES["/healthz"].status, QUICK_PAGES["/healthz"].body) == (200, b"ok\n")


def test_a_turn_that_takes_too_long_is_a_fault_until_it_ends_and_one_that_waits_for_hardware_is_none():
    begun, go_on = threading.Barrier(3), threading.Event()

    def hang(thread: PartThread) -> None:
        with thread.turn():
            begun.wait(60)
            go_on.wait(60)
        begun.wait(60)

    slow, patient = PartThread("slow", hang, hang_s=-1.0), PartThread("patient", hang, hang_s=math.inf)
    slow.start()
    patient.start()
    begun.wait(60)
    assert slow.fault() == "the thread slow has hung for 0 s"
    assert patient.fault() == ""
    go_on.set()
    until(lambda: not slow.fault())
    for thread in (slow, patient):
        thread.release()
    begun.wait(60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_whose_thread_is_ended_by_anything_but_an_error_is_a_fault(needed):
    def leave() -> float:
        raise SystemExit

    loop = Loop("left", leave, failure="failed")
    loop.start()
    until(lambda: "the thread left has ended" in needed.faults())
    loop.stop()


def test_a_loop_with_nothing_left_to_do_or_that_was_stopped_is_no_fault(needed):
    idle, stopped = Loop("idle", lambda: None, failure="failed"), Loop("stopped", lambda: math.inf, failure="failed")
    idle.resume()
    stopped.start()
    stopped.stop(60)
    until(lambda: not idle.is_running)
    assert needed.faults() == ()


@pytest.mark.parametrize("begin", [Loop.start, Loop.resume])
def test_a_loop_whose_thread_can_t_be_started_is_not_running_and_starts_at_the_next_attempt(
    needed, begin: Callable[[Loop], None]
):
    taken = threading.Event()
    loop = Loop("late", lambda: taken.set() or math.inf, failure="failed")
    with no_thread_starts(), pytest.raises(NodeError, match=r"late can't be started: can't start new thread") as caught:
        begin(loop)
    assert caught.value.code == "node.thread"
    assert not loop.is_running
    assert needed.faults() == ()
    begin(loop)
    assert taken.wait(60)
    loop.stop(60)
