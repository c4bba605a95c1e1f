"""Load limits: bodies and reviews beyond the limits wait, and are refused when that takes too long."""

from __future__ import annotations

import threading

import pytest

from dra_driver.webhook.load_limits import SMALL_BYTES, LoadLimits, OverloadedError

LARGE = 10 * SMALL_BYTES


def test_small_bodies_do_not_count():
    limits = LoadLimits(("/a",), max_bytes=0)
    with limits.for_body(SMALL_BYTES, 0), limits.for_body(SMALL_BYTES, 0):
        pass


def test_large_bodies_count_with_all_their_bytes_until_their_review_ends():
    limits = LoadLimits(("/a",), max_bytes=2 * LARGE)
    with (
        limits.for_body(LARGE, 0),
        limits.for_body(LARGE, 0),
        pytest.raises(OverloadedError),
        limits.for_body(LARGE, 0),
    ):
        pass
    with limits.for_body(2 * LARGE, 0):
        pass


def test_a_body_that_waits_is_admitted_when_another_is_done():
    limits, got = LoadLimits(("/a",), max_bytes=LARGE), threading.Event()

    def second():
        with limits.for_body(LARGE, 30):
            got.set()

    thread = threading.Thread(target=second)
    with limits.for_body(LARGE, 0):
        thread.start()
        assert not got.is_set()
    thread.join()
    assert got.is_set()


def test_one_large_review_of_a_path_runs_at_a_time_and_small_ones_beside_it():
    limits = LoadLimits(("/a", "/b"))
    with limits.for_review("/a", LARGE, 0), limits.for_review("/a", 1, 0), limits.for_review("/b", LARGE, 0):
        assert not limits._large["/a"].acquire(blocking=False)
    with limits.for_review("/a", LARGE, 0):
        pass


def test_reviews_of_one_path_do_not_count_for_another_path():
    limits = LoadLimits(("/a", "/b"))
    held = [limits.for_review("/a", 1, 0) for _ in range(8)]
    for one in held:
        one.__enter__()
    with pytest.raises(OverloadedError), limits.for_review("/a", 1, 0):
        pass
    with limits.for_review("/b", 1, 0):
        pass
    for one in held:
        one.__exit__(None, None, None)
