import pytest

from dra_driver.node.slices.pool_sync import Schedule


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
    return Schedule(clock=clock, settle_s=0.25)


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


def test_a_comparison_after_all_changes_so_far_needs_no_other_one(schedule):
    schedule.disturbed()
    schedule.within(5.0)
    assert schedule.is_disturbed
    schedule.compared()
    assert not schedule.is_disturbed
    assert schedule.wait_s() == pytest.approx(5.0)


def test_of_two_scheduled_examinations_the_earlier_one_counts(schedule):
    schedule.within(9.0)
    schedule.within(3.0)
    schedule.within(6.0)
    assert schedule.wait_s() == pytest.approx(3.0)


def test_new_devices_do_not_wait_for_the_quiet_time(schedule):
    schedule.disturbed()
    schedule.at_once()
    assert schedule.wait_s() == 0.0
