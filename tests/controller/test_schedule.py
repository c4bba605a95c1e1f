import pytest

from dra_driver.controller.schedule import Schedule


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def schedule(clock):
    return Schedule(clock=clock, uniform=lambda low, high: high, settle_s=0.25)


def answer(schedule, clock, *, writes=1):
    """Let one foreign change happen and be answered, and return how long the answer took."""
    schedule.disturbed()
    delay = schedule.wait_s()
    clock.now += delay
    schedule.begin()
    schedule.succeeded(writes=writes)
    return delay


def test_nothing_is_ever_due_by_itself(schedule, clock):
    clock.now += 1e9
    assert schedule.wait_s() is None


def test_a_requested_look_is_due_at_once_and_only_once(schedule):
    schedule.at_once()
    assert schedule.wait_s() == 0.0
    schedule.begin()
    assert schedule.wait_s() is None


def test_a_burst_of_foreign_changes_is_answered_once_after_a_quiet_time(schedule, clock):
    for _ in range(5):
        schedule.disturbed()
        assert schedule.wait_s() == pytest.approx(0.25)
        clock.now += 0.1
    clock.now += 0.15
    assert schedule.wait_s() == pytest.approx(0.0)


def test_foreign_changes_without_end_are_answered_after_two_seconds(schedule, clock):
    start = clock.now
    while (delay := schedule.wait_s()) is None or delay > 0:
        schedule.disturbed()
        clock.now += 0.1
    assert clock.now - start == pytest.approx(2.0, abs=0.2)


def test_repeated_foreign_changes_are_answered_more_and_more_slowly(schedule, clock):
    delays = [answer(schedule, clock) for _ in range(10)]
    assert delays[:5] == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0])
    assert delays[-1] == pytest.approx(15.0)


def test_after_two_minutes_without_changes_the_answer_is_quick_again(schedule, clock):
    for _ in range(5):
        answer(schedule, clock)
    clock.now += 121
    assert answer(schedule, clock) == pytest.approx(0.25)


def test_foreign_changes_that_need_no_write_do_not_slow_the_answers(schedule, clock):
    delays = {round(answer(schedule, clock, writes=0), 3) for _ in range(10)}
    assert delays == {0.25}


def test_new_devices_do_not_wait_for_the_quiet_time(schedule):
    schedule.disturbed()
    schedule.at_once()
    assert schedule.wait_s() == 0.0


def test_delays_after_failures_grow_until_an_attempt_succeeds(schedule):
    assert [schedule.failed() for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert schedule.failed(least_s=20.0) == pytest.approx(21.6)
    schedule.succeeded(writes=0)
    assert schedule.failed() == pytest.approx(0.1)


def test_a_final_failure_is_not_retried_until_something_new_is_requested(schedule):
    schedule.begin()
    assert schedule.failed(is_final=True) is None
    assert schedule.wait_s() is None
    schedule.at_once()
    assert schedule.wait_s() == 0.0
