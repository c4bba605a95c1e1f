"""Who may scrape: the real port and gate; the API server is a stand-in that keeps tokens and rights."""

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.base.telemetry.status_server import PageResponse, Port
from dra_driver.kube.paths import ACCESS_REVIEWS, TOKEN_REVIEWS
from dra_driver.node.daemon.status_page import (
    FRESH_SECONDS,
    MAX_UNKNOWN_CALLERS,
    STALE_SECONDS,
    UNKNOWN_CALLERS_SECONDS,
    MetricsReaders,
)
from tests.support.waiting import until


class Server:
    """Answers reviews; `asked` are the paths that were posted to."""

    def __init__(self):
        self.users = {"good": "prometheus", "other": "somebody"}
        self.may = {"prometheus"}
        self.asked, self.reviewed = [], []
        self.is_down = False
        self.released = threading.Event()
        self.released.set()

    def request(self, method, path, *, body=None):
        self.released.wait(60)
        self.asked.append(path)
        if self.is_down:
            raise ApiError("unreachable", "no answer")
        spec = body["spec"]
        if path == TOKEN_REVIEWS:
            self.reviewed.append(spec["token"])
            user = self.users.get(spec["token"])
            if user is None:
                return {"status": {"authenticated": False}}
            return {"status": {"authenticated": True, "user": {"username": user, "uid": "u", "groups": ["g"]}}}
        assert path == ACCESS_REVIEWS
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        assert spec["groups"] == ["g"]
        return {"status": {"allowed": spec["user"] in self.may}}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def port(server, clock):
    gate = MetricsReaders(SimpleNamespace(review_api=lambda: server), clock=clock)
    one = Port(("127.0.0.1", 0), {"/metrics": lambda: PageResponse(200, b"x 1\n")}, quick={}, access=gate)
    one.start()
    yield one
    one.stop()


def scrape(port, authorization=None):
    connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=60)
    headers = {"authorization": authorization} if authorization is not None else {}
    connection.request("GET", "/metrics", headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_a_reader_with_the_right_sees_the_page_and_nobody_else_does(port):
    assert scrape(port, "Bearer good") == (200, b"x 1\n")
    assert scrape(port, "bearer   good")[0] == 200
    assert scrape(port, "Bearer other")[0] == 403
    assert scrape(port, "Bearer wrong")[0] == 401
    for nothing in (None, "", "Bearer", "Bearer ", "Basic Zzo=", "good"):
        assert scrape(port, nothing)[0] == 401, nothing


def test_a_permission_is_kept_for_a_minute_and_no_longer(port, server, clock):
    for _ in range(5):
        assert scrape(port, "Bearer good")[0] == 200
    assert len(server.asked) == 2
    server.may.clear()
    clock.now += FRESH_SECONDS - 1
    assert scrape(port, "Bearer good")[0] == 200
    clock.now += 1
    assert scrape(port, "Bearer good")[0] == 403


def test_a_known_reader_may_go_on_for_ten_minutes_while_the_api_server_is_away(port, server, clock):
    assert scrape(port, "Bearer good")[0] == 200
    server.is_down = True
    clock.now += FRESH_SECONDS
    assert scrape(port, "Bearer good")[0] == 200
    assert scrape(port, "Bearer other")[0] == 503
    clock.now += STALE_SECONDS
    assert scrape(port, "Bearer good")[0] == 503
    server.is_down = False
    assert scrape(port, "Bearer good")[0] == 200


def test_a_known_reader_does_not_wait_behind_unknown_callers(port, server, clock):
    assert scrape(port, "Bearer good")[0] == 200
    clock.now += FRESH_SECONDS
    server.released.clear()
    with ThreadPoolExecutor(40) as callers:
        unknown = [callers.submit(scrape, port, f"Bearer unknown-{number}") for number in range(30)]
        until(lambda: sum(caller.done() for caller in unknown) == 30 - MAX_UNKNOWN_CALLERS)
        known = callers.submit(scrape, port, "Bearer good")
        server.released.set()
        assert known.result(60)[0] == 200
    statuses = [caller.result(60)[0] for caller in unknown]
    assert (statuses.count(401), statuses.count(503)) == (MAX_UNKNOWN_CALLERS, 30 - MAX_UNKNOWN_CALLERS)
    assert server.reviewed.index("good", 1) <= 2  # beside the one that was under way


def test_each_unknown_caller_costs_the_api_server_one_review_and_the_known_reader_none(port, server, clock):
    assert scrape(port, "Bearer good")[0] == 200
    for number in range(10):
        scrape(port, f"Bearer unknown-{number}")
    assert UNKNOWN_CALLERS_SECONDS >= 0.2  # between two of their reviews
    assert len(server.asked) == 12
    assert scrape(port, "Bearer good")[0] == 200
    assert len(server.asked) == 12


@pytest.mark.parametrize("answer", [{}, {"status": 1}, {"status": {"authenticated": True}},
                                    {"status": {"authenticated": True, "user": {"username": ""}}},
                                    {"status": {"authenticated": "yes", "user": {"username": "x"}}}])  # fmt: skip
def test_an_answer_that_is_no_review_lets_nobody_in(port, server, answer):
    server.request = lambda *_, **__: answer
    assert scrape(port, "Bearer good")[0] in {401, 503}
