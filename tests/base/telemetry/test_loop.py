"""The loop of a background thread: turns, pauses, waking, ending, beginning again."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from dra_driver.base.telemetry.logs import Loop

PATIENCE = 60.0


class Turns:
    """Counts turns, which return `results` one after the other, and the last of them from then on."""

    def __init__(self, *results: float | Callable[[], float | None] | None) -> None:
        self._results = list(results)
        self._changed = threading.Condition()
        self.count = 0

    def __call__(self) -> float | None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()
            result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        return result() if callable(result) else result

    def reach(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, PATIENCE)


def fail() -> float:
    raise ValueError("a fault of ours")


def test_the_first_turn_comes_at_once_and_the_next_after_its_pause_or_when_woken():
    turns = Turns(0.0, math.inf)
    loop = Loop("t", turns, failure="t failed")
    loop.start()
    assert turns.reach(2)
    loop.wake()
    assert turns.reach(3)
    loop.stop(PATIENCE)
    loop.wake()
    assert turns.count == 3


def test_a_turn_that_fails_is_logged_and_the_loop_goes_on(caplog):
    turns = Turns(fail, math.inf)
    loop = Loop("t", turns, failure="the turn failed", fault_s=0.0)
    with caplog.at_level(logging.ERROR):
        loop.start()
        assert turns.reach(2)
        loop.stop(PATIENCE)
    assert "the turn failed" in caplog.text
    assert "a fault of ours" in caplog.text


def test_with_nothing_left_to_do_the_thread_ends_until_it_is_resumed():
    turns = Turns(None)
    loop = Loop("t", turns, failure="t failed")
    for count in range(1, 4):
        before = threading.active_count()
        loop.resume()
        assert turns.reach(count)
        while loop.is_running:
            pass
        assert threading.active_count() <= before + 1
    loop.stop(PATIENCE)
    loop.resume()
    assert not loop.is_running
    assert turns.count == 3


def test_a_resume_during_the_last_turn_is_not_lost():
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    turns = Turns(wait, None)
    loop = Loop("t", turns, failure="t failed")
    loop.resume()
    assert begun.wait(PATIENCE)
    loop.resume()
    go_on.set()
    assert turns.reach(2)
    loop.stop(PATIENCE)


def test_a_loop_that_was_stopped_can_be_started_again_and_one_that_hung_stays_stopped():
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> float:
        begun.set()
        assert go_on.wait(PATIENCE)
        return 0.0

    turns = Turns(hang, math.inf)
    loop = Loop("hung", turns, failure="t failed")
    loop.start()
    assert begun.wait(PATIENCE)
    loop.stop()
    loop.start()
    assert turns.reach(2)
    go_on.set()
    loop.stop(PATIENCE)
    assert turns.count == 2
