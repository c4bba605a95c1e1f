"""When the same slices may be written again. A clock that the test moves, and no I/O."""

import itertools
import random

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.node.slices.compare import PoolContent
from dra_driver.node.slices.pool_sync import SPREAD_SECONDS, RepairTokens, WritePace

WISH = PoolContent(({"name": "a"},))
OTHER = PoolContent(({"name": "b"},))
HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def refusal(status: int, *, wait_s: float = 0.0) -> ApiError:
    return ApiError("refused", "refused", status=status, retry=Retry.LATER, retry_after_s=wait_s)


def attempts(pace: WritePace, clock: Clock, error: ApiError, seconds: float = HOUR) -> list[float]:
    """Attempt to write as often as the pace allows, each time in vain; return the times since the first attempt."""
    start, made = clock.now, []
    while clock.now < start + seconds:
        wait_s = pace.admit(WISH)
        if not wait_s:
            made.append(clock.now - start)
            delay_s = pace.failed(error)
            if delay_s is None:
                break
            wait_s = delay_s
        clock.now += wait_s
    return made


def test_a_bucket_gives_a_burst_and_then_one_token_at_a_time(clock):
    bucket = RepairTokens(3, 60.0, clock=clock)
    assert [bucket.take() for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 60.0])
    clock.now += 60.0
    assert [bucket.take(), bucket.take()] == pytest.approx([0.0, 60.0])
    clock.now += 1e6
    assert [bucket.take() for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 60.0])


def test_what_another_client_undoes_is_written_again_three_times_and_then_once_a_minute(clock):
    pace, start, repairs = WritePace(clock=clock), clock.now, []
    assert pace.admit(WISH) == 0.0
    while clock.now < start + HOUR and len(repairs) < 60:
        pace.succeeded(WISH)
        if wait_s := pace.admit(WISH):
            clock.now += wait_s
        else:
            repairs.append(clock.now - start)
    assert repairs[:3] == [0.0] * 3
    assert 55 <= len(repairs) < 60
    assert all(60 <= later - earlier <= 66 for earlier, later in itertools.pairwise(repairs[2:]))


def test_a_new_wish_waits_for_nothing(clock):
    pace = WritePace(clock=clock)
    for _ in range(5):
        pace.admit(WISH)
        pace.succeeded(WISH)
    assert pace.admit(WISH) > 0
    assert pace.admit(OTHER) == 0.0
    pace.failed(refusal(403))
    assert pace.admit(WISH) == 0.0


@pytest.mark.parametrize("status", [400, 401, 403, 405, 413, 415, 422])
def test_a_write_that_is_refused_for_good_is_tried_at_most_twelve_times_an_hour_and_never_given_up(clock, status):
    for seed in range(50):
        pace = WritePace(clock=clock, uniform=random.Random(seed).uniform)
        made = attempts(pace, clock, refusal(status), 10 * HOUR)
        for first in (0.0, *made):
            assert len([at for at in made if first <= at < first + HOUR]) <= 12
        assert max(later - earlier for earlier, later in itertools.pairwise(made)) <= 600
        assert len(made) > 60


def test_a_write_that_an_api_server_refused_while_it_started_is_repeated_within_seconds(clock):
    delays = []
    for seed in range(100):
        pace = WritePace(clock=clock, uniform=random.Random(seed).uniform)
        pace.admit(WISH)
        delays.append(pace.failed(refusal(403)))
    assert max(delays) <= 2.0
    assert max(delays) - min(delays) > 1.5, "full jitter"


def test_asking_often_makes_no_attempt_come_earlier(clock):
    pace = WritePace(clock=clock, uniform=lambda _low, step: step)
    pace.admit(WISH)
    pace.failed(refusal(422))
    waits = []
    for _ in range(4):
        waits.append(pace.admit(WISH))
        clock.now += 0.5
    assert waits == pytest.approx([2.0, 1.5, 1.0, 0.5])
    assert pace.admit(WISH) == 0.0


@pytest.mark.parametrize("status", [0, 404, 408, 409, 410, 429, 500, 503])
def test_faults_that_pass_are_retried_soon_and_at_least_once_a_minute(clock, status):
    pace = WritePace(clock=clock, uniform=lambda _low, step: step)
    pace.admit(WISH)
    error = ApiError("x", "x", status=status, retry=Retry.NOW)
    delays = [pace.failed(error) for _ in range(7)]
    assert delays[:3] == pytest.approx([0.1, 0.4, 1.6])
    assert delays[-1] == SPREAD_SECONDS
    pace.succeeded(WISH)
    assert (pace.attempts, pace.failed(error)) == (0, pytest.approx(0.1))


def test_the_time_for_which_the_server_asks_is_waited_in_any_case(clock):
    pace = WritePace(clock=clock, uniform=lambda low, _step: low)
    pace.admit(WISH)
    assert pace.failed(refusal(429, wait_s=20.0)) == pytest.approx(20.0)


def test_what_was_never_sent_is_not_sent_again_until_something_changes(clock):
    pace = WritePace(clock=clock)
    pace.admit(WISH)
    assert pace.failed(ApiError("pool-invalid", "no", retry=Retry.NEVER)) is None
    assert pace.admit(WISH) == 0.0
