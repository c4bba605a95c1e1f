"""The server over real TLS: reviews, keep-alive, garbage, slow clients, probes, a renewed certificate."""

from __future__ import annotations

import json
import ssl
import threading
from datetime import UTC, datetime

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.tools.webhook.certificates import load_certificate_pair, make_certificate_pair
from dra_driver.tools.webhook.handler import MAX_BYTES, MAX_VALUES
from dra_driver.tools.webhook.server import ReviewServer
from tests.support.waiting import until
from tests.tools.webhook.support.reviews import DRIVER, claim, config, review
from tests.tools.webhook.support.serving import NAME, ask, is_closed


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
    headers = [({"Content-Length": length}, 413) for length in (str(MAX_BYTES + 1), "9" * 20)]
    headers += [({"Content-Length": length}, 400) for length in ("x", "-1", "+1", "²", "", "9" * 5000)]
    headers += [({}, 411), ({"Transfer-Encoding": "chunked"}, 411)]
    headers += [({"Content-Type": "text/yaml", "Content-Length": "2"}, 415)]
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
    assert ask(serving.connect(), "/configs", method="DELETE")[0] == 405
    assert ask(serving.connect(), "/configs/")[0] == 404


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


def test_headers_beyond_the_limit_are_not_read(serving):
    connection = serving.connect()
    connection.putrequest("POST", "/configs")
    for number in range(20):
        connection.putheader(f"X-{number}", "y" * 1000)
    connection.endheaders()
    assert connection.getresponse().status in {400, 431}
    connection.close()
    assert ask(serving.connect(), "/" + "x" * 20_000)[0] in {400, 431}
    assert ask(serving.connect())[0] == 200


def test_garbage_after_an_answer_ends_the_connection_without_a_traceback(serving, caplog):
    connection = serving.connect()
    connection.connect()
    connection.sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert connection.sock.recv(15) == b"HTTP/1.1 200 OK"
    connection.sock.sendall(b"garbage\r\n")
    until(lambda: is_closed(connection.sock))
    assert not caplog.records


def test_probes_are_answered_while_as_many_reviews_run_as_may(serving):
    for _ in range(8):
        serving.begin_endless()
    assert ask(serving.connect(), "/healthz", method="GET")[0] == 200
    assert ask(serving.connect())[0] == 200


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
        ReviewServer(("127.0.0.1", serving.server.port), serving.context, reviewers={}, pages={})
