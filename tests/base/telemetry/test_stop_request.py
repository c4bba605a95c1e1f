"""A request to stop is noticed at whatever moment the signal comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from dra_driver.base.telemetry.logs import StopRequest

# The handler runs at every line that a wait goes through, in the thread that waits.
STORM = """
import signal, sys
from dra_driver.base.telemetry.logs import StopRequest
asked = 0
def ask(*_):
    global asked
    asked += 1
    stop.set()
def trace(frame, event, argument):
    if frame.f_code.co_name in {"ask", "set"}:
        return None
    if event == "line":
        signal.raise_signal(signal.SIGTERM)
    return trace
signal.signal(signal.SIGTERM, ask)
stop = StopRequest()
sys.settrace(trace)
found = stop.wait(0.001)
sys.settrace(None)
print(found, stop.is_set(), asked > 1)
"""


def test_a_handler_may_request_a_stop_at_every_moment_of_a_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORM], check=True, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.stdout.split() == ["True", "True", "True"]


def test_a_wait_ends_when_asked_and_after_its_time() -> None:
    stop = StopRequest()
    assert not stop.wait(0.001)
    assert not stop.is_set()
    asking = threading.Timer(0.01, stop.set)
    asking.start()
    assert stop.wait()
    assert stop.wait(0)
    asking.join()


def test_a_signal_ends_the_wait_of_the_main_thread() -> None:
    stop = StopRequest()
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert stop.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
