from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.backoff import Backoff


def test_delays_double_up_to_the_most():
    backoff = Backoff(base_s=1.0, most_s=10.0, uniform=lambda low, high: high)
    assert [backoff.next_s() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_success_begins_anew():
    backoff = Backoff(base_s=1.0, uniform=lambda low, high: high)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 1.0


@given(st.integers(0, 5000))
def test_any_delay_lies_between_half_and_all_of_its_step(attempts):
    backoff = Backoff(base_s=0.1, most_s=30.0)
    backoff.attempts = attempts
    step = min(30.0, 0.1 * 2.0 ** min(attempts, 32))
    assert step / 2 <= backoff.next_s() <= step
