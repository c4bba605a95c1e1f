"""The server over real TLS: reviews, keep-alive, garbage, slow clients, probes, a renewed certificate."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from datetime import UTC, datetime

import pytest

from dra_driver.model.errors import NodeError
from dra_driver.webhook import handler
from dra_driver.webhook.certificates import make_certificate_pair
from dra_driver.webhook.decoding import MAX_VALUES
from dra_driver.webhook.handler import MAX_BYTES
from dra_driver.webhook.identity import load_certificate_pair
from dra_driver.webhook.review import refuse_unread, review_configs
from dra_driver.webhook.server import ReviewServer
from tests.support.waiting import until
from tests.webhook.support.reviews import DRIVER, claim, config, review

NAME = "localhost"
PAIR = make_certificate_pair((NAME,), datetime.now(UTC))


def broken(_review, _deadline):
    raise RuntimeError("an internal error")


class Serving:
    """A server on a port of its own."""

    def __init__(self):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_certificate_pair(self.context, PAIR)
        self.reasons = ()
        self.begun = threading.Event()
        self.answered = []
        self.server = ReviewServer(
            ("127.0.0.1", 0),
            self.context,
            reviewers={
                "/configs": lambda it, _deadline: review_configs(it, (DRIVER,)),
                "/broken": broken,
                "/endless": self.endless,
            },
            unread={"/configs": refuse_unread},
            readiness=lambda: self.reasons,
            metrics=lambda: b"reviews 1\n",
            answered=lambda path, outcome: self.answered.append((path, outcome)),
        )
        self.server.start()

    def endless(self, _review, deadline):
        self.begun.set()
        while True:
            deadline.check()

    def connect(self, authorities=PAIR.authorities):
        trust = ssl.create_default_context(cadata=authorities)
        return http.client.HTTPSConnection(NAME, self.server.port, context=trust, timeout=60)


@pytest.fixture
def serving():
    made = Serving()
    yield made
    made.server.stop()


def ask(connection, path="/configs", body=None, method="POST"):
    data = json.dumps(review(claim())).encode() if body is None else body
    connection.request(method, path, data if method == "POST" else None)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_reviews_are_answered_on_one_connection_that_stays(serving):
    connection = serving.connect()
    for body, allowed in ((claim(), True), (claim(config(strategy="nonsense")), False)):
        status, text = ask(connection, body=json.dumps(review(body)).encode())
        assert status == 200
        assert json.loads(text)["response"]["allowed"] is allowed
        assert connection.sock is not None
    assert serving.answered == [("/configs", "allowed"), ("/configs", "refused")]
    connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
        b"9" * 5000,
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "%s"}}' % (b"u" * 100_000),
        b'{"request": {"uid": 1}}',
    ],
)
def test_garbage_is_bad_input_and_the_connection_stays_open(serving, garbage):
    connection = serving.connect()
    assert ask(connection, body=garbage)[0] == 400
    assert ask(connection)[0] == 200
    connection.close()


def test_a_body_that_is_too_large_or_has_no_length_is_not_read(serving):
    headers = [({"Content-Length": length}, 413) for length in (str(MAX_BYTES + 1), "9" * 5000)]
    headers += [({"Content-Length": length}, 411) for length in ("x", "-1", "+1", "²", "")]
    headers += [({"Transfer-Encoding": "chunked"}, 411), ({"Content-Type": "text/yaml", "Content-Length": "2"}, 415)]
    for header, status in headers:
        connection = serving.connect()
        connection.putrequest("POST", "/configs")
        for name, value in header.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders()
        assert connection.getresponse().status == status
        connection.close()


def test_other_paths_and_methods_are_refused(serving):
    assert ask(serving.connect(), "/nowhere")[0] == 404
    assert ask(serving.connect(), "/nowhere", method="GET")[0] == 404
    assert ask(serving.connect(), "/configs", method="DELETE")[0] == 501


def test_an_internal_error_is_a_500_and_the_next_review_is_answered(serving):
    connection = serving.connect()
    assert ask(connection, "/broken")[0] == 500
    assert ask(connection)[0] == 200
    connection.close()


def test_probes_say_what_is_missing(serving):
    assert ask(serving.connect(), "/readyz", method="GET") == (200, b"ok\n")
    serving.reasons = ("no certificate yet",)
    assert ask(serving.connect(), "/readyz", method="GET") == (503, b"no certificate yet\n")
    assert ask(serving.connect(), "/healthz", method="GET")[0] == 200
    assert ask(serving.connect(), "/metrics", method="GET") == (200, b"reviews 1\n")


def test_clients_that_do_not_complete_the_handshake_delay_no_other(serving):
    idle = [socket.create_connection((NAME, serving.server.port)) for _ in range(20)]
    plain = socket.create_connection((NAME, serving.server.port))
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert ask(serving.connect())[0] == 200
    for one in [*idle, plain]:
        one.close()


def test_clients_that_stop_half_way_through_a_body_delay_no_other(serving):
    halves = []
    for _ in range(10):
        connection = serving.connect()
        connection.putrequest("POST", "/configs")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b'{"api')
        halves.append(connection)
    assert ask(serving.connect())[0] == 200
    for one in halves:
        one.close()
    cut = serving.connect()
    cut.putrequest("POST", "/configs")
    cut.putheader("Content-Length", "1000")
    cut.endheaders(b'{"api')
    cut.sock.shutdown(socket.SHUT_RDWR)  # without a close_notify of TLS
    cut.close()
    assert ask(serving.connect())[0] == 200


def test_connections_beyond_the_limit_take_the_place_of_idle_ones(serving, monkeypatch):
    monkeypatch.setattr(serving.server.connections, "_maximum", 3)
    idle = [serving.connect() for _ in range(5)]
    for one in idle:
        assert ask(one)[0] == 200
    assert ask(idle[-1])[0] == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(idle[0])
    for one in idle:
        one.close()


def test_headers_beyond_the_limit_are_not_read(serving):
    connection = serving.connect()
    connection.putrequest("POST", "/configs")
    for number in range(20):
        connection.putheader(f"X-{number}", "y" * 1000)
    connection.endheaders()
    assert connection.getresponse().status == 431
    connection.close()
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(serving.connect(), "/" + "x" * 20_000)
    assert ask(serving.connect())[0] == 200


def test_a_body_that_comes_byte_by_byte_has_one_time_limit_as_a_whole(serving, monkeypatch):
    monkeypatch.setattr(handler, "READ_SECONDS", 0.5)
    connection = serving.connect()
    connection.putrequest("POST", "/configs")
    connection.putheader("Content-Length", "1000000")
    connection.endheaders(b'{"api')
    connection.sock.settimeout(30)

    def is_over():
        try:
            connection.sock.sendall(b"x")
        except OSError:
            return True
        return False

    until(is_over)
    connection.close()
    assert ask(serving.connect())[0] == 200


def test_a_review_ends_when_its_caller_has_gone(serving):
    connection = serving.connect()
    connection.request("POST", "/endless", json.dumps(review(claim())).encode())
    assert serving.begun.wait(60)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: ("/endless", "gone") in serving.answered)


def test_an_object_with_too_many_values_is_refused(serving):
    obj = claim()
    obj["metadata"]["finalizers"] = [""] * MAX_VALUES
    body = json.dumps(review(obj)).encode()
    status, text = ask(serving.connect(), body=body)
    answer = json.loads(text)["response"]
    assert (status, answer["uid"], answer["allowed"]) == (200, "u-1", False)
    assert ask(serving.connect(), "/broken", body=body)[0] == 400


@pytest.mark.parametrize(
    "parameters", ['{"a":' * 3000 + "1" + "}" * 3000, "[" * 20_000 + "]" * 20_000, "9" * 9_000, "NaN"]
)
def test_odd_parameters_in_valid_json_are_judged(serving, parameters):
    obj = claim({"opaque": {"driver": DRIVER, "parameters": "HERE"}})
    body = json.dumps(review(obj)).replace('"HERE"', parameters).encode()
    status, text = ask(serving.connect(), body=body)
    assert status == 200
    assert json.loads(text)["response"]["allowed"] is False


def test_a_renewed_certificate_is_served_to_new_connections(serving):
    renewed = make_certificate_pair((NAME,), datetime.now(UTC))
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(serving.connect(renewed.authorities))
    load_certificate_pair(serving.context, renewed)
    assert ask(serving.connect(renewed.authorities))[0] == 200


def test_all_of_many_concurrent_clients_are_answered(serving):
    statuses = []

    def client():
        connection = serving.connect()
        statuses.extend(ask(connection)[0] for _ in range(10))
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 80


def test_a_taken_port_is_an_error_of_the_node(serving):
    with pytest.raises(NodeError, match="cannot listen"):
        ReviewServer(("127.0.0.1", serving.server.port), serving.context, reviewers={}, readiness=tuple)
