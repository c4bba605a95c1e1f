"""Connections with a clock that the test sets: which of them are closed, and when."""

from __future__ import annotations

import socket

import pytest

from dra_driver.webhook.connections import ClientConnections


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pairs():
    made = [socket.socketpair() for _ in range(4)]
    yield made
    for pair in made:
        for one in pair:
            one.close()


def is_closed(pair):
    pair[1].setblocking(False)
    try:
        return pair[1].recv(1) == b""
    except BlockingIOError:
        return False


def test_a_connection_is_closed_when_its_time_is_over_and_not_while_its_review_runs(clock, pairs):
    connections = ClientConnections(10, clock=clock)
    waiting, working, over = (connections.enter(pair[0], 5.0) for pair in pairs[:3])
    assert waiting is not None
    clock.now = 4.0
    waiting.wait(90.0)
    working.work()
    clock.now = 6.0
    connections.sweep()
    assert [is_closed(pair) for pair in pairs[:3]] == [False, False, True]
    connections.leave(over)
    clock.now = 95.0
    connections.sweep()
    assert [is_closed(pair) for pair in pairs[:2]] == [True, False]


def test_a_new_connection_takes_the_place_of_the_one_that_has_been_idle_longest(clock, pairs):
    connections = ClientConnections(3, clock=clock)
    made = []
    for pair in pairs[:3]:
        made.append(connections.enter(pair[0], 5.0))
        clock.now += 1.0
    made[0].work()
    assert connections.enter(pairs[3][0], 5.0) is not None
    assert [is_closed(pair) for pair in pairs] == [False, True, False, False]


def test_no_connection_is_accepted_while_reviews_run_on_all_others(clock, pairs):
    connections = ClientConnections(2, clock=clock)
    made = [connections.enter(pair[0], 5.0) for pair in pairs[:2]]
    for one in made:
        one.work()
    assert connections.enter(pairs[2][0], 5.0) is None
    connections.leave(made[0])
    assert connections.enter(pairs[2][0], 5.0) is not None


def test_a_socket_that_is_closed_already_causes_no_error(clock, pairs):
    connections = ClientConnections(2, clock=clock)
    connections.enter(pairs[0][0], 1.0)
    pairs[0][0].close()
    clock.now = 2.0
    connections.sweep()
