"""Answers read from bytes: in whatever pieces they come, they are read as the standard library does, or refused."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.transport.bounds import BoundedReader, BrokenError, ResponseLimits
from dra_driver.kube.transport.http_response import HttpResponse

BODIES = st.binary(max_size=300)
TEXTS = st.text("abc-=;, 019", max_size=12).map(str.strip)
NAMES = st.sampled_from(["Content-Type", "Audit-Id", "X-Kubernetes-Pf-Flowschema-Uid", "Date", "Warning"])


READY = os.open(os.devnull, os.O_RDONLY)


class Pieces:
    """A socket whose peer sends the given pieces, and then ends the connection."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def fileno(self) -> int:
        """Return a descriptor that is always ready: all pieces are there."""
        return READY

    def recv(self, maximum: int) -> bytes:
        """Return the next piece, or a part of it."""
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if rest := piece[maximum:]:
            self._pieces.insert(0, rest)
        return piece[:maximum]


def reader(*pieces: bytes) -> BoundedReader:
    made = BoundedReader(Pieces(list(pieces)))  # type: ignore[arg-type]
    made.bounds = ResponseLimits(time.monotonic() + 60.0)
    return made


def split(text: bytes, places: list[int]) -> Iterator[bytes]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield text[start:end]


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    fields = draw(st.lists(st.tuples(NAMES, TEXTS), max_size=5))
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n"]))
    status = draw(st.sampled_from(["200 OK", "201 Created", "404 Not Found", "429 Too Many Requests", "500 "]))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return interim + f"HTTP/1.1 {status}\r\n{lines}".encode()


@st.composite
def framed(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """An answer that ends by itself, and its body."""
    head, body = draw(heads()), draw(BODIES)
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, body
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    text, left, turn = head + b"Transfer-Encoding: chunked\r\n\r\n", body, 0
    while left:
        size = min(sizes[turn % len(sizes)], len(left))
        text += b"%X%s\r\n" % (size, draw(st.sampled_from([b"", b";a=b"]))) + left[:size] + b"\r\n"
        left, turn = left[size:], turn + 1
    return text + b"0\r\n" + draw(st.sampled_from([b"", b"Trailer: a\r\n"])) + b"\r\n", body


def by_the_standard_library(text: bytes) -> tuple[int, bytes]:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(text)
        there.shutdown(socket.SHUT_WR)
        response = HTTPResponse(here, method="GET")
        response.begin()
        return response.status, response.read()


@given(framed(), st.lists(st.integers(0, 2000), max_size=8))
def test_a_body_is_whole_in_whatever_pieces_it_comes(answer: tuple[bytes, bytes], places: list[int]) -> None:
    text, body = answer
    read = HttpResponse(reader(*split(text, places)))
    assert read.whole() == body
    assert read.may_be_followed


@given(framed(), framed())
def test_two_answers_on_one_connection_are_told_apart(first: tuple[bytes, bytes], second: tuple[bytes, bytes]) -> None:
    both = reader(first[0] + second[0])
    one = HttpResponse(both)
    assert one.whole() == first[1]
    assert not one.may_be_followed, "bytes followed that answer no request"
    assert HttpResponse(both).whole() == second[1]


@given(framed(), st.integers(0, 2000))
def test_an_answer_that_is_cut_off_is_an_error(answer: tuple[bytes, bytes], place: int) -> None:
    text, _ = answer
    with pytest.raises(BrokenError):
        HttpResponse(reader(text[: place % len(text)])).whole()


@given(framed(), st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_what_is_read_from_damaged_bytes_is_what_the_standard_library_reads(
    answer: tuple[bytes, bytes], place: int, damage: bytes
) -> None:
    text, _ = answer
    start = place % len(text)
    text = text[:start] + damage + text[start + len(damage) :]
    try:
        read = HttpResponse(reader(text))
        ours = read.status, read.whole()
    except BrokenError:
        return  # refused, which is always safe: the caller gets an error and the connection is closed
    try:
        theirs = by_the_standard_library(text)
    except (HTTPException, OSError, ValueError):
        return
    assert ours == theirs or theirs[0] in range(101, 200)  # the library takes any interim answer but 100 as final


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: \r\n",
        b"Content-Length: 9999999999999999999\r\n",
        b"Content-Length : 4\r\n",
        b" folded: 4\r\n",
        b"Content-Length: 4\n",
        b"no colon\r\n",
        b"a\x00b: 4\r\n",
    ],
)
def test_an_answer_whose_end_two_readers_could_place_differently_is_refused(fields: bytes) -> None:
    with pytest.raises(BrokenError):
        HttpResponse(reader(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n4\r\nbody\r\n0\r\n\r\n")).whole()


@pytest.mark.parametrize(
    "line", [b"HTTP/2 200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1  200 OK", b"http/1.1 200 OK", b""]
)
def test_a_status_line_that_is_not_http_1_is_refused(line: bytes) -> None:
    with pytest.raises(BrokenError):
        HttpResponse(reader(line + b"\r\nContent-Length: 0\r\n\r\n"))


@pytest.mark.parametrize(
    ("head", "may_follow"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nconnection: Keep-Alive, Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", False),
    ],
)
def test_a_connection_is_kept_only_where_http_lets_another_request_follow(head: bytes, may_follow: bool) -> None:
    answer = HttpResponse(reader(head + b"\r\n{}"))
    assert not answer.may_be_followed, "its body has not been read"
    assert answer.whole() == b"{}"
    assert answer.may_be_followed is may_follow


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_is_over_at_once(status: int) -> None:
    answer = HttpResponse(reader(b"HTTP/1.1 %d x\r\nContent-Length: 7\r\n\r\n" % status))
    assert (answer.whole(), answer.may_be_followed) == (b"", True)
