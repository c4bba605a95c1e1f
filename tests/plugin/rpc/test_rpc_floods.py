"""Clients that send far too much, or read nothing, although each of their frames is allowed: they delay nobody else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import grpc
import pytest

from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin.rpc import frames
from dra_driver.plugin.rpc.answering import MethodCalls
from dra_driver.plugin.rpc.call import RpcMethod
from dra_driver.plugin.rpc.connection import RpcConnection
from dra_driver.plugin.rpc.server import CONNECTIONS
from dra_driver.plugin.rpc.stream import RpcStream
from dra_driver.plugin.rpc.writer import SEND_SECONDS
from tests.plugin.support.served import MESSAGE, OPENING, SECONDS, Served, data, head
from tests.support.waiting import until

FLOODS = {
    "pings": (b"", frames.frame(frames.PING, 0, 0, bytes(8))),
    "settings": (b"", frames.settings({})),
    "window updates": (head(1), frames.number_frame(frames.WINDOW_UPDATE, 1, 1)),
    "header fields that are continued by nothing": (head(1, flags=0), frames.frame(frames.CONTINUATION, 0, 1)),
    "empty data": (head(1), data(1, b"", flags=0)),
    "priorities": (b"", frames.frame(frames.PRIORITY, 0, 1, bytes(5))),
}


@contextmanager
def flooding(served: Served, beginning: bytes, frame: bytes) -> Iterator[list[BaseException]]:
    """Let a client that reads nothing send a frame for ever; yield the errors that have ended its connections."""
    ended: list[BaseException] = []
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            with closing(served.raw()) as sock:
                try:
                    sock.sendall(OPENING + beginning)
                    while not is_over.is_set():
                        sock.sendall(frame * 500)
                except OSError as error:
                    ended.append(error)
                    return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield ended
    finally:
        is_over.set()
        thread.join(SECONDS)


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_frames_ends_its_own_connection_before_it_delays_another_client(served: Served, name: str) -> None:
    assert served.call("before").uid == "before"
    with ExitStack() as stack:
        floods = [stack.enter_context(flooding(served, *FLOODS[name])) for _ in range(3)]
        for number in range(20):
            begin = time.monotonic()
            assert served.call(str(number)).uid == str(number)
            assert time.monotonic() - begin < SEND_SECONDS / 2
        until(lambda: all(floods), "every flood to have lost its connection")


def test_refused_methods_whose_refusals_are_not_read_delay_nobody(served: Served) -> None:
    unknown = (head(number, path=b"/no" * 1000) + data(number, b"") for number in range(1, 1000, 2))
    with closing(served.raw()) as sock:
        sock.setblocking(False)
        with suppress(OSError):
            sock.sendall(OPENING + b"".join(unknown))
        begin = time.monotonic()
        assert served.call("a").uid == "a"
        assert time.monotonic() - begin < SEND_SECONDS / 2


def test_calls_that_were_cancelled_while_they_waited_are_not_kept(served: Served) -> None:
    method = RpcMethod(served.service.echo, v1.Claim.FromString, 1)
    calls, connection = MethodCalls(method), RpcConnection(served.raw())
    assert calls.admit(connection, RpcStream(1, {}, 0))
    for number in range(3, 20_000, 2):
        stream = RpcStream(number, {}, 0)
        assert not calls.admit(connection, stream)
        stream.call.over()
    assert len(calls) < 2000
    connection.close()


def test_large_requests_that_never_end_are_not_all_kept(served: Served) -> None:
    with closing(served.raw()) as sock:
        sock.settimeout(None)  # with a timeout, a socket waits for input whatever a flag says
        sock.sendall(OPENING)

        def send_half_a_request(number: int) -> bool:
            try:
                with suppress(BlockingIOError):  # this client reads, so that only what it sends is too much
                    sock.recv(65536, socket.MSG_DONTWAIT)
                sock.sendall(head(number) + data(number, bytes(16_384), flags=0) * 32)
            except ConnectionError:
                return False
            return True

        sent = [number for number in range(1, 1000, 2) if send_half_a_request(number)]
    assert len(sent) < 40
    assert served.call("after").uid == "after"


def test_connections_that_nobody_uses_keep_no_client_out(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS + 10):
            sock = stack.enter_context(closing(served.raw()))
            with suppress(ConnectionError):
                sock.sendall(OPENING)
        with closing(grpc.insecure_channel(f"unix:{served.path}")) as channel:
            call: Callable[..., bytes] = channel.unary_unary("/test/Echo")
            # While the queue of the listening socket is full, gRPC's first attempt to connect fails.
            assert call(v1.Claim(uid="new").SerializeToString(), timeout=SECONDS, wait_for_ready=True)


def test_pings_between_answered_calls_are_no_flood(served: Served) -> None:
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    with closing(served.raw()) as sock:
        sock.sendall(OPENING)
        for number in range(1, 60, 2):
            sock.sendall(ping * 200 + head(number) + data(number, MESSAGE))
            found = b""
            while MESSAGE not in found:
                piece = sock.recv(65536)
                assert piece, "the connection was closed"
                found += piece
