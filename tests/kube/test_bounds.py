"""Bounds on what a hostile server can make the client read: the size of an answer, and the time of the caller."""

import itertools
import time

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.kube import connection
from dra_driver.kube.api import KubeApi
from dra_driver.kube.connections import LineStream
from dra_driver.kube.kubeconfig import Credentials, StaticToken
from tests.kube.support.raw_server import OK, RawServer

CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
A_MIB = b" " * (1 << 20)
FINE = b'Content-Length: 8\r\n\r\n{"a": 1}'


@pytest.fixture
def small_limit(monkeypatch):
    """Set a limit that even single bytes reach within moments."""
    monkeypatch.setattr(connection, "_RAW_BYTES", 1 << 20)


def client(server: RawServer) -> KubeApi:
    return KubeApi(Credentials(server.url, StaticToken()))


def endless(head: bytes, piece: bytes):
    return lambda: itertools.chain([head], itertools.repeat(piece))


def drip(head: bytes, piece: bytes = b"x"):
    def pieces():
        yield head
        while True:
            time.sleep(0.02)
            yield piece

    return pieces


@pytest.mark.parametrize(
    "script",
    [
        endless(OK + b"\r\n", A_MIB),
        endless(OK + b"Content-Length: 99999999999999\r\n\r\n", A_MIB),
        endless(CHUNKED, b"100000\r\n" + A_MIB + b"\r\n"),
        endless(CHUNKED, b"1\r\n \r\n" * 20_000),
        endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 20_000),
        endless(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    ],
    ids=["until close", "long", "chunks", "chunks of one byte", "trailers", "interim answers"],
)
def test_an_answer_without_an_end_is_read_up_to_a_limit(script, small_limit):
    with RawServer(script) as server, pytest.raises(ApiError) as caught:
        client(server).request("GET", "/x", timeout_s=60)
    assert server.sent < 16 << 20  # the buffers of both sockets come on top of the limit
    assert server.connections == 1
    assert (caught.value.code, caught.value.retry) == ("api.answer-too-large", Retry.LATER)


@pytest.mark.parametrize(
    "script",
    [
        endless(b"HTTP/1.1 200 ", b"K" * 65536),
        endless(OK, b"a: b\r\n" * 1000),
        endless(b"HTTP/1.1 100 Continue\r\n", b"a: b\r\n" * 1000),
        endless(CHUNKED, b"f" * 65536),
        endless(CHUNKED + b"1;", b"e" * 65536),
        lambda: [b"rubbish\r\n\r\n"],
        lambda: [CHUNKED, b"-5\r\n{}\r\n0\r\n\r\n"],
    ],
    ids=["status line", "headers", "interim headers", "chunk size", "chunk extension", "no HTTP", "negative chunk"],
)
def test_what_is_not_http_is_an_error_and_not_a_crash(script):
    with RawServer(script) as server, pytest.raises(ApiError) as caught:
        client(server).request("GET", "/x", timeout_s=60)
    assert server.sent < 16 << 20
    assert caught.value.code in {"api.unreachable", "api.answer-too-large", "api.bad-answer"}


@pytest.mark.parametrize(
    "script",
    [
        drip(b""),
        drip(b"HTTP/1.1 200 OK\r\n", b"a"),
        drip(OK + b"\r\n"),
        drip(OK + b"Content-Length: 999\r\n\r\n"),
        drip(CHUNKED, b"1\r\n \r\n"),
        drip(CHUNKED + b"0\r\n", b"a: b\r\n"),
        drip(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["status", "header", "body", "long body", "chunks", "trailers", "interim answers"],
)
def test_a_request_whose_answer_comes_byte_by_byte_ends_at_its_timeout(script):
    with RawServer(script) as server, pytest.raises(ApiError) as caught:
        client(server).request("POST", "/x", timeout_s=0.3)
    assert caught.value.code == "api.timeout"


def test_a_compressed_answer_that_was_not_asked_for_is_refused():
    with (
        RawServer(lambda: [OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"]) as server,
        pytest.raises(ApiError, match="compressed"),
    ):
        client(server).request("GET", "/x")


@pytest.mark.parametrize("body", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_json_that_is_nested_too_deeply_is_a_clear_error(body):
    with (
        RawServer(lambda: [OK + b"Content-Length: %d\r\n\r\n" % len(body) + body]) as server,
        pytest.raises(ApiError, match="nested too deeply") as caught,
    ):
        client(server).request("GET", "/x")
    assert caught.value.code == "api.bad-answer"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[{}]", "a list, not a JSON object"),
        (b'"a"', "a str"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a":' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_what_is_not_a_json_object_is_a_clear_error(body, what):
    with (
        RawServer(lambda: [OK + b"Content-Length: %d\r\n\r\n" % len(body) + body]) as server,
        pytest.raises(ApiError, match=what) as caught,
    ):
        client(server).request("GET", "/x")
    assert caught.value.code == "api.bad-answer"


@pytest.mark.parametrize("status", [b"101 Switching Protocols", b"204 No Content", b"302 Found", b"304 Not Modified"])
def test_an_answer_that_is_neither_success_nor_refusal_is_an_error(status):
    answer = b"HTTP/1.1 " + status + b"\r\nLocation: http://127.0.0.1:1/\r\n" + FINE
    with RawServer(lambda: [answer]) as server, pytest.raises(ApiError):
        client(server).request("GET", "/x")


@pytest.mark.parametrize(
    "rubbish",
    [
        OK + b"Content-Length: 4\r\n\r\noops",
        OK + b"Content-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>",
    ],
)
def test_a_kept_connection_that_answered_rubbish_is_not_used_again(rubbish):
    with RawServer(lambda: [OK + FINE], lambda: [rubbish], lambda: [OK + FINE]) as server:
        api = client(server)
        api.request("GET", "/x")
        with pytest.raises(ApiError):
            api.request("GET", "/x")
        assert server.connections == 1
        assert api.request("GET", "/x") == {"a": 1}
        assert server.connections == 2


def test_a_connection_that_sent_more_than_its_answer_is_not_used_again():
    smuggled = OK + FINE + OK + b'Content-Length: 12\r\n\r\n{"evil": 1} '
    with RawServer(lambda: [smuggled], lambda: [OK + FINE]) as server:
        api = client(server)
        assert api.request("GET", "/x") == {"a": 1}
        assert api.request("GET", "/x") == {"a": 1}
        assert server.connections == 2


def stream(server: RawServer, *, line_s: float = 30.0, max_s: float = 60.0) -> LineStream:
    opened = client(server).stream("/x", query={}, max_s=max_s)
    opened._line_s = line_s
    opened.open()
    return opened


@pytest.mark.parametrize(
    "script",
    [
        endless(OK + b"\r\n", A_MIB),
        endless(CHUNKED, b"100000\r\n" + A_MIB + b"\r\n"),
        endless(CHUNKED, b"1\r\nx\r\n" * 20_000),
        endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 20_000),
    ],
    ids=["until close", "chunks", "chunks of one byte", "trailers"],
)
def test_a_line_of_a_stream_has_a_limit(script, small_limit):
    with RawServer(script) as server:
        opened = stream(server)
        with pytest.raises(ApiError) as caught:
            list(opened.lines())
        assert server.sent < 16 << 20
        opened.release()
    assert caught.value.code == "api.stream-broken"


def test_a_line_of_a_stream_must_end_in_time():
    with RawServer(drip(CHUNKED + b"4\r\n{}\n{\r\n", b"1\r\nx\r\n")) as server:
        lines = stream(server, line_s=0.3).lines()
        assert next(lines) == b"{}"
        with pytest.raises(ApiError) as caught:
            next(lines)
    assert caught.value.code == "api.stream-broken"


def test_a_stream_ends_at_its_time_limit_however_much_it_sends():
    with RawServer(drip(CHUNKED, b"3\r\n{}\n\r\n")) as server, pytest.raises(ApiError) as caught:
        list(stream(server, max_s=0.3).lines())
    assert caught.value.code == "api.stream-broken"


def test_a_stream_whose_head_does_not_end_is_an_error_at_its_time_limit():
    with RawServer(drip(b"HTTP/1.1 200 OK\r\n", b"a")) as server, pytest.raises(ApiError):
        stream(server, max_s=0.3)


def test_a_line_of_a_stream_is_smaller_than_a_page_of_a_list():
    with RawServer(endless(OK + b"\r\n", A_MIB)) as server:
        opened = stream(server)
        with pytest.raises(ApiError, match="a line is too large"):
            list(opened.lines())
        opened.release()
