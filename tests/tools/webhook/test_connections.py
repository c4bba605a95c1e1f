"""Connections over real TLS: how long each may take, and which one is closed when there is no more room."""

from __future__ import annotations

import http.client
import json
import socket

import pytest

from dra_driver.tools.http_server import READ_BYTES
from dra_driver.tools.webhook.handler import MAX_BYTES
from tests.support.waiting import until
from tests.tools.webhook.support.serving import Serving, ask, is_closed


def half(serving, length=1000, sent=b'{"api'):
    """Return a connection that has sent a part of its body."""
    connection = serving.connect()
    connection.putrequest("POST", "/configs")
    connection.putheader("Content-Length", str(length))
    connection.endheaders(sent)
    return connection


def send_forever(sock, data):
    while True:
        sock.sendall(data)


def test_clients_that_do_not_complete_the_handshake_delay_no_other(serving):
    idle = [serving.socket() for _ in range(20)]
    plain = serving.socket()
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert ask(serving.connect())[0] == 200
    for one in [*idle, plain]:
        one.close()


def test_clients_that_stop_half_way_through_a_body_delay_no_other(serving):
    halves = [half(serving) for _ in range(10)]
    assert ask(serving.connect())[0] == 200
    for one in halves:
        one.close()
    cut = half(serving)
    cut.sock.shutdown(socket.SHUT_RDWR)  # without a close_notify of TLS
    cut.close()
    assert ask(serving.connect())[0] == 200
    until(lambda: serving.answered.count(("/configs", "bad-review")) == 11)


def test_a_handshake_has_a_time_limit():
    with Serving(handshake=0.2) as serving, serving.socket() as sock:
        sock.settimeout(30)  # half of what asyncio allows a handshake
        assert is_closed(sock)


def test_a_connection_without_requests_has_a_time_limit():
    with Serving(first=1, following=1) as serving:
        unused, used = serving.connect(), serving.connect()
        unused.connect()
        assert ask(used)[0] == 200
        assert is_closed(unused.sock)
        assert is_closed(used.sock)


@pytest.mark.parametrize(
    "begin", [b"POST /configs HTTP/1.1\r\nX: ", b"POST /configs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"]
)
@pytest.mark.parametrize("requests", [0, 1])
def test_a_head_or_a_body_that_comes_byte_by_byte_has_one_time_limit_as_a_whole(begin, requests):
    with Serving(head=0.5, body=0.5) as serving:
        connection = serving.connect()
        connection.connect()
        for _ in range(requests):
            assert ask(connection)[0] == 200
        connection.sock.sendall(begin)

        def is_over():
            try:
                connection.sock.sendall(b"x")
            except OSError:
                return True
            return False

        until(is_over)
        connection.close()
        assert ask(serving.connect())[0] == 200


def test_a_client_that_reads_no_answers_is_closed():
    with Serving(answer=0.5) as serving:
        serving.metrics = b"x" * 1_000_000
        connection = serving.connect()
        connection.connect()
        with pytest.raises(OSError) as ended:
            send_forever(connection.sock, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        assert not isinstance(ended.value, TimeoutError)
        assert ask(serving.connect(), "/healthz", method="GET")[0] == 200


def test_a_new_connection_takes_the_place_of_the_one_that_has_been_idle_longest():
    with Serving(connections=3) as serving:
        idle = [serving.connect() for _ in range(5)]
        for one in idle:
            assert ask(one)[0] == 200
        assert ask(idle[-1])[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(idle[0])
        for one in idle:
            one.close()


def test_a_new_connection_takes_the_place_of_an_unfinished_handshake():
    with Serving(is_started=False, connections=3, handshake=600) as serving:
        unfinished = [serving.socket() for _ in range(4)]
        serving.server.start()
        assert is_closed(unfinished[0])
        assert ask(serving.connect())[0] == 200
        assert is_closed(unfinished[1])


def test_no_connection_is_accepted_while_reviews_run_on_all_others():
    with Serving(connections=2) as serving:
        running = [serving.begin_endless() for _ in range(2)]
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(serving.connect())
        serving.released.set()
        assert [one.getresponse().status for one in running] == [200, 200]
        assert ask(serving.connect())[0] == 200


def test_a_review_ends_when_its_caller_has_gone(serving):
    connection = serving.begin_endless()
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: ("/endless", "gone") in serving.answered)


def test_a_large_body_is_not_taken_in_before_there_is_room_for_it(serving):
    serving.server._application._limits._left = 0
    held = half(serving, MAX_BYTES, b"x" * 100_000)
    held.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        send_forever(held.sock, b"x" * 10_000)
    [connection] = serving.server._server.server_state.connections
    assert len(connection.cycle.body) <= 2 * READ_BYTES
    held.sock.settimeout(60)
    assert held.getresponse().status == 503


def test_a_server_ends_at_once_although_connections_are_open():
    serving = Serving()
    idle, begun = serving.connect(), half(serving)
    assert ask(idle)[0] == 200
    working = serving.begin_endless()
    serving.released.set()
    serving.server.stop()
    assert json.loads(working.getresponse().read())["response"]["allowed"] is True
    for one in (idle, begun):
        assert is_closed(one.sock)
    with pytest.raises(OSError):
        serving.socket()
