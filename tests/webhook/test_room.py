"""Room for bodies and reviews: what has no room waits, and goes away unheard when it takes too long."""

from __future__ import annotations

import threading

import pytest

from dra_driver.webhook.room import SMALL_BYTES, NoRoomError, Room

LARGE = 10 * SMALL_BYTES


def test_small_bodies_need_no_room():
    room = Room(("/a",), most_bytes=0)
    with room.for_body(SMALL_BYTES, 0), room.for_body(SMALL_BYTES, 0):
        pass


def test_large_bodies_count_with_all_their_bytes_until_they_are_judged():
    room = Room(("/a",), most_bytes=2 * LARGE)
    with room.for_body(LARGE, 0), room.for_body(LARGE, 0), pytest.raises(NoRoomError), room.for_body(LARGE, 0):
        pass
    with room.for_body(2 * LARGE, 0):
        pass


def test_who_waits_for_room_gets_it():
    room, got = Room(("/a",), most_bytes=LARGE), threading.Event()

    def second():
        with room.for_body(LARGE, 30):
            got.set()

    thread = threading.Thread(target=second)
    with room.for_body(LARGE, 0):
        thread.start()
        assert not got.is_set()
    thread.join()
    assert got.is_set()


def test_one_large_review_of_a_path_is_judged_at_a_time_and_small_ones_beside_it():
    room = Room(("/a", "/b"))
    with room.for_judging("/a", LARGE, 0), room.for_judging("/a", 1, 0), room.for_judging("/b", LARGE, 0):
        assert not room._large["/a"].acquire(blocking=False)
    with room.for_judging("/a", LARGE, 0):
        pass


def test_reviews_of_one_path_do_not_take_the_room_of_the_other():
    room = Room(("/a", "/b"))
    held = [room.for_judging("/a", 1, 0) for _ in range(8)]
    for one in held:
        one.__enter__()
    with pytest.raises(NoRoomError), room.for_judging("/a", 1, 0):
        pass
    with room.for_judging("/b", 1, 0):
        pass
    for one in held:
        one.__exit__(None, None, None)
