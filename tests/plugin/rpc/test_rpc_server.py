"""The gRPC server over real unix sockets: called by grpcio's client, and by clients that break the rules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import grpc
import pytest

from dra_driver.model.errors import NodeError
from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.header_fields import literal
from dra_driver.plugin.rpc.server import RpcServer
from tests.plugin.support.served import MAX, MESSAGE, OPENING, SECONDS, Served, data, head
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


def test_a_call_is_answered_and_gets_the_time_that_is_left(served: Served) -> None:
    assert served.call("a", seconds=9).uid == "a"
    left = served.service.seen[0].time_remaining()
    assert left is not None
    assert 0 <= left < 10
    assert served.method("Echo")(v1.Claim(uid="b")).uid == "b"
    assert served.service.seen[1].time_remaining() is None
    until(lambda: served.service.seen[1].is_over)


def test_errors_reach_the_client_with_code_and_text(served: Served) -> None:
    for uid, method, code, text in (
        ("abort", "Echo", grpc.StatusCode.RESOURCE_EXHAUSTED, "too much: 100 %, für alle"),
        ("bug", "Echo", grpc.StatusCode.UNKNOWN, "ZeroDivisionError: oops"),
        ("a", "Nothing", grpc.StatusCode.UNIMPLEMENTED, "there is no such method"),
    ):
        with pytest.raises(grpc.RpcError) as error:
            served.call(uid, method)
        assert (error.value.code(), error.value.details()) == (code, text)
    broken = served.channel.unary_unary("/test/Echo", request_serializer=lambda m: m, response_deserializer=bytes)
    with pytest.raises(grpc.RpcError) as error:
        broken(b"\xff\xff\xff", timeout=SECONDS)
    assert error.value.code() is grpc.StatusCode.INTERNAL


def test_metadata_follows_the_answer(served: Served) -> None:
    _, call = served.method("Echo").with_call(v1.Claim(uid="trailers"), timeout=SECONDS)
    assert [(one.key, one.value) for one in call.trailing_metadata()] == [("one", "1"), ("two", "2")]


@pytest.mark.parametrize("size", [0, 16_384, 65_535, 70_000, 700_000])
def test_requests_and_answers_of_any_size_pass(served: Served, size: int) -> None:
    assert len(served.call("a", name="x" * size).name) == size
    assert len(served.call("much", name="x" * (size // 1000)).name) == size // 1000 * 1000


def test_many_calls_at_once_on_one_connection_are_all_answered(served: Served) -> None:
    with ThreadPoolExecutor(40) as pool:
        for _ in range(10):
            assert {found.uid for found in pool.map(served.call, map(str, range(200)))} == set(map(str, range(200)))


def test_waiting_calls_delay_no_other_method_and_run_only_up_to_their_limit(served: Served) -> None:
    waiting = [served.method("Wait").future(v1.Claim(uid=str(n)), timeout=SECONDS) for n in range(3 * MAX)]
    until(lambda: len(served.service.seen) == MAX)
    assert served.call("a").uid == "a"
    assert len(served.service.seen) == MAX + 1, "the rest waits for its turn"
    served.service.gate.set()
    assert {one.result(SECONDS).uid for one in waiting} == {str(n) for n in range(3 * MAX)}


def test_a_call_that_was_cancelled_while_it_waited_is_never_begun(served: Served) -> None:
    method = served.method("Wait")
    running = [method.future(v1.Claim(uid="running"), timeout=SECONDS) for _ in range(MAX)]
    until(lambda: len(served.service.seen) == MAX)
    waiting = method.future(v1.Claim(uid="waiting"), timeout=SECONDS)
    assert served.call("later").uid == "later"  # sent after it on the same connection, so it is known by now
    waiting.cancel()
    assert served.call("last").uid == "last"
    served.service.gate.set()
    assert [one.result(SECONDS).uid for one in running] == ["running"] * MAX
    assert served.call("end").uid == "end"
    assert len(served.service.seen) == MAX + 3, "three of them are echoes"


def test_a_call_is_inactive_once_its_client_has_cancelled_it(served: Served) -> None:
    waiting = served.method("Wait").future(v1.Claim(uid="a"), timeout=SECONDS)
    until(lambda: served.service.seen)
    assert served.service.seen[0].is_active()
    waiting.cancel()
    until(lambda: served.service.ended == ["a"])
    assert not served.service.seen[0].is_active()
    assert served.call("b").uid == "b"


def test_a_stream_sends_one_message_after_the_other_and_ends_with_its_client(served: Served) -> None:
    listing = served.channel.unary_stream(
        "/test/List", request_serializer=lambda m: m.SerializeToString(), response_deserializer=v1.Claim.FromString
    )
    assert [one.uid for one in listing(v1.Claim(), timeout=SECONDS)] == ["0", "1", "2"]
    served.service.gate.clear()
    endless = listing(v1.Claim(uid="endless"), timeout=SECONDS)
    assert [next(endless).uid for _ in range(3)] == ["0", "1", "2"]
    endless.cancel()
    until(lambda: served.service.ended == ["list"])


def test_calls_of_a_client_that_is_gone_are_over(served: Served) -> None:
    with closing(grpc.insecure_channel(f"unix:{served.path}")) as channel:
        call = channel.unary_unary("/test/Wait", request_serializer=lambda m: m, response_deserializer=bytes)
        waiting = call.future(v1.Claim(uid="gone").SerializeToString(), timeout=SECONDS)
        until(lambda: served.service.seen)
        assert not waiting.done()
    until(lambda: served.service.ended == ["gone"])


def test_stop_lets_a_running_call_end_and_takes_no_new_one(served: Served) -> None:
    waiting = served.method("Wait").future(v1.Claim(uid="a"), timeout=SECONDS)
    until(lambda: served.service.seen)
    done = served.server.stop(SECONDS)
    with pytest.raises(grpc.RpcError) as error:
        served.call("b", seconds=5)
    assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert not done.is_set()
    served.service.gate.set()
    assert waiting.result(SECONDS).uid == "a"
    assert done.wait(SECONDS)


def test_stop_cuts_off_a_call_that_does_not_end_in_time(served: Served) -> None:
    waiting = served.method("Wait").future(v1.Claim(uid="a"), timeout=SECONDS)
    until(lambda: served.service.seen)
    served.server.stop(0.1)
    with pytest.raises(grpc.RpcError):
        waiting.result(SECONDS)
    until(lambda: served.service.ended == ["a"])


BROKEN = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a frame that is too long": OPENING + b"\xff\xff\xff\0\0\0\0\0\1",
    "an even stream": OPENING + head(2),
    "an old stream": OPENING + head(3) + head(1),
    "data of no stream": OPENING + data(1, MESSAGE),
    "data after the end": OPENING + head(1, path=b"/test/Wait") + data(1, MESSAGE) + data(1, MESSAGE),
    "fields that continue nothing": OPENING + frames.frame(frames.CONTINUATION, 0, 1),
    "fields that are interrupted": OPENING + head(1, flags=0) + data(1, MESSAGE),
    "endless fields": OPENING + head(1, flags=0) + frames.frame(frames.CONTINUATION, 0, 1, bytes(16_384)) * 5,
    "too many fields": OPENING + frames.frame(frames.HEADERS, 4, 1, literal(b"a", b"b" * 100) * 140),
    "a field that is not in the table": OPENING + frames.frame(frames.HEADERS, 4, 1, b"\xff\x50"),
    "fields cut off": OPENING + frames.frame(frames.HEADERS, 4, 1, b"\0\x05a"),
    "a number without an end": OPENING + frames.frame(frames.HEADERS, 4, 1, b"\xff" * 20),
    "a table that is too large": OPENING + frames.frame(frames.HEADERS, 4, 1, b"\x3f\xff\xff\x03"),
    "invalid compression": OPENING + frames.frame(frames.HEADERS, 4, 1, b"\0\x84\xff\xff\xff\xff\x01a"),
    "padding beyond the frame": OPENING + frames.frame(frames.HEADERS, 4 | frames.PADDED, 1, b"\x09abc"),
    "a window update of zero": OPENING + frames.number_frame(frames.WINDOW_UPDATE, 0, 0),
    "a window that is too large": OPENING + frames.number_frame(frames.WINDOW_UPDATE, 0, 2**31 - 1),
    "settings cut off": OPENING + frames.frame(frames.SETTINGS, 0, 0, b"\0\4\0"),
    "a ping of no length": OPENING + frames.frame(frames.PING, 0, 0),
    "a push": OPENING + frames.frame(frames.PUSH_PROMISE, 4, 1),
    "an invalid timeout": OPENING + head(1, grpc_timeout=b"soon"),
    "an endless request": OPENING + head(1) + data(1, bytes(16_384), flags=0) * 70,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_client_that_breaks_the_rules_loses_its_connection_and_no_other_client_does(
    served: Served, name: str
) -> None:
    assert served.call("before").uid == "before"
    with closing(served.raw()) as sock:
        with suppress(ConnectionError):
            sock.sendall(BROKEN[name])
        with suppress(ConnectionError):
            while sock.recv(65536):
                pass
    assert served.call("after").uid == "after"


def test_a_request_is_read_however_its_bytes_are_cut(served: Served) -> None:
    padded = b"\x02" + MESSAGE + b"\0\0"
    whole = OPENING + head(1) + frames.frame(frames.DATA, frames.END_STREAM | frames.PADDED, 1, padded)
    with closing(served.raw()) as sock:
        for place in range(len(whole)):
            sock.sendall(whole[place : place + 1])
        found = b""
        while MESSAGE not in found:
            piece = sock.recv(65536)
            assert piece
            found += piece


def test_an_answer_is_sent_within_the_window_of_its_client(served: Served) -> None:
    opening = frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 4})
    with closing(served.raw()) as sock:
        sock.sendall(opening + head(1) + data(1, MESSAGE))
        found, buffer = b"", bytearray()
        while found != MESSAGE:
            piece = sock.recv(65536)
            assert piece
            buffer += piece
            for kind, _, _, payload in frames.whole_frames(buffer):
                if kind == frames.DATA:
                    assert len(payload) <= 4
                    found += payload
                    sock.sendall(frames.number_frame(frames.WINDOW_UPDATE, 1, len(payload)))


def test_a_server_for_which_no_thread_can_be_started_does_not_start(short_path: Path) -> None:
    server = RpcServer({})
    server.add_socket(short_path / "s")
    with no_thread_starts("rpc"), pytest.raises(NodeError, match="can't start new thread"):
        server.start()
    assert server.stop(1.0).wait(SECONDS)


def test_a_stream_does_not_take_the_only_thread_that_reads_calls(served: Served) -> None:
    answers = served.channel.unary_stream(
        "/test/List", request_serializer=lambda m: m.SerializeToString(), response_deserializer=v1.Claim.FromString
    )
    with no_thread_starts("rpc"):
        assert served.call("a").uid == "a"
        assert served.server.is_answering
        streams = [answers(v1.Claim(uid="endless"), timeout=SECONDS) for _ in range(4)]  # more than threads so far
        until(lambda: grpc.StatusCode.RESOURCE_EXHAUSTED in {one.code() for one in streams if one.done()})
        assert served.call("b").uid == "b"
    served.service.gate.set()
    assert [one.uid for one in answers(v1.Claim(uid="short"), timeout=SECONDS)] == ["0", "1", "2"]


def test_a_server_ends_also_if_no_thread_can_be_started_for_that(short_path: Path) -> None:
    served = Served(short_path / "s")
    assert served.call("a").uid == "a"
    with no_thread_starts("rpc"):
        assert served.server.stop(1.0).wait(SECONDS)
    assert not served.server.is_answering
    served.channel.close()
