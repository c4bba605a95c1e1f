from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.machine import Backoff


def test_delays_double_up_to_the_maximum():
    backoff = Backoff(base_s=1.0, max_s=10.0, uniform=lambda low, high: high)
    assert [backoff.next_s() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_reset_returns_to_the_first_delay():
    backoff = Backoff(base_s=1.0, uniform=lambda low, high: high)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 1.0


@given(st.integers(0, 5000))
def test_a_delay_with_jitter_is_between_zero_and_its_step(attempts):
    backoff = Backoff(base_s=0.1, max_s=30.0)
    backoff.attempts = attempts
    step = min(30.0, 0.1 * 2.0 ** min(attempts, 32))
    assert 0.0 <= backoff.next_s() <= step


@given(st.integers(0, 5000), st.floats(0.0, 300.0))
def test_what_the_server_asks_for_is_waited_in_full_and_the_jitter_comes_on_top(attempts, asked_s):
    backoff = Backoff(base_s=0.1, max_s=30.0)
    backoff.attempts = attempts
    assert asked_s <= backoff.next_s(least_s=asked_s) <= asked_s + 30.0
