"""Connections that keep the console waiting: they end in time, and take nobody else's place."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from dra_driver.tools.console.console import LIMITS, WebServer, listening_socket, settings
from dra_driver.tools.http_server import OpenConnections
from tests.support.api.certificates import make_ca, make_leaf
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import fill
from tests.support.console.process import running_console
from tests.support.console.server import running_server
from tests.support.waiting import until

BIG = 64 << 20
LATE = threading.Event()  # an application that has answered ends
WRITTEN = threading.Event()  # all of a big answer was handed to the connection


def idle(stack, port, count, begin=b""):
    """Open connections that send the beginning of a request at most."""
    opened = []
    for _ in range(count):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        sock.sendall(begin)
        opened.append(sock)
    return opened


def is_closed(sock):
    """Return whether the other side has closed a connection, without waiting."""
    sock.setblocking(False)
    try:
        return sock.recv(1 << 16, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"POST /sign-in HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"])
@pytest.mark.parametrize("count", [199, 2 * LIMITS.connections])
def test_connections_without_a_token_do_not_stop_the_console_for_others(tmp_path, begin, count):
    with GuardedApi() as api, ExitStack() as stack:
        fill(api)
        api.add("admin-token", "admin", *((one, "") for one in EVERYTHING))
        server = stack.enter_context(running_server(str(api.write_kubeconfig(tmp_path / "config"))))
        with server.looked_at(authorization="Bearer admin-token"):
            idle(stack, server.port, count, begin)
            until(lambda: server.ask("admin-token", "offers").status == 200, timeout_s=5.0)
            until(lambda: server.claims("admin-token") >= {"mine"})


def test_connections_that_do_not_begin_tls_do_not_stop_the_console_for_others(tmp_path):
    ours, folder = make_ca(tmp_path, "ours"), tmp_path / "tls"
    certificate, key = make_leaf(tmp_path, "console", "ours")
    folder.mkdir()
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    with GuardedApi() as api, ExitStack() as stack:
        words = (str(api.write_kubeconfig(tmp_path / "config")), "--tls-dir", str(folder))
        server = stack.enter_context(running_server(*words, tls=ssl.create_default_context(cafile=str(ours))))
        silent = idle(stack, server.port, 2 * LIMITS.of_peer)
        assert server.send("GET", "/healthz").status == 200
        until(lambda: sum(map(is_closed, silent)) >= LIMITS.of_peer, "the end of those beyond the limit")
        until(lambda: all(map(is_closed, silent)), "the end of all", timeout_s=LIMITS.handshake + 10)


def test_the_console_on_a_machine_is_not_stopped_either():
    with running_console("--fleet", "demo-h100") as console, ExitStack() as stack:
        idle(stack, console.port, 199)
        console.ready()


class Clock:
    """The time, which a test can put forward."""

    def __init__(self):
        self.ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


async def app(scope, receive, send):
    """Answer with the body, with much, or with a stream that goes on."""
    request = Request(scope, receive)
    if scope["path"] == "/stream":
        await StreamingResponse(_ticks())(scope, receive, send)
    elif scope["path"] == "/late":
        await Response(b"early")(scope, receive, send)
        while not LATE.is_set():
            await asyncio.sleep(0.01)
    elif scope["path"] == "/big":
        await Response(b"x" * BIG)(scope, receive, send)
        WRITTEN.set()
    else:
        try:
            await Response(await request.body())(scope, receive, send)
        except ClientDisconnect:
            return


async def _ticks():
    while True:
        yield b"tick\n"
        await asyncio.sleep(0.05)


@contextmanager
def serving():
    """Serve the application in a thread; yield its port, and its connections with their clock."""
    clock, sock = Clock(), listening_socket("127.0.0.1", 0)
    server = WebServer(settings(app), lambda: None, lambda: None)
    server.connections = OpenConnections(LIMITS, clock)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    port = sock.getsockname()[1]
    thread.start()
    try:
        yield port, server.connections, clock
    finally:
        server.ask_to_end()
        thread.join(30)


def in_seconds(connections, clock):
    """Return in how many seconds the time of each connection is over."""
    return [math.ceil(one.until - clock()) for one in connections._open.values() if one.until < math.inf]


@pytest.mark.parametrize(("begin", "seconds"), [
    (b"", LIMITS.first),
    (b"GET / HTTP/1.1\r\nhost:", LIMITS.first),
    (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{", LIMITS.body),
    (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n", LIMITS.body),
    (b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n", LIMITS.answer),
], ids=str)  # fmt: skip
def test_what_does_not_arrive_or_is_not_taken_in_time_ends_the_connection_even_if_a_little_is_sent(begin, seconds):
    with serving() as (port, connections, clock), ExitStack() as stack:
        [sock] = idle(stack, port, 1, begin)
        until(lambda: b"big" not in begin or WRITTEN.is_set())
        until(lambda: in_seconds(connections, clock) == [seconds], "what the console waits for")
        clock.ahead = seconds - 5.0
        sock.settimeout(1.5)  # longer than the server takes to look at its connections
        if b"big" not in begin:
            with pytest.raises(TimeoutError):
                sock.recv(1)
        clock.ahead = seconds + 1.0

        def has_ended():
            try:
                sock.settimeout(0.1)
                sock.sendall(b"x")
                taken = sock.recv(1 << 20) if b"big" not in begin else b"x"
            except TimeoutError:
                return False
            except OSError:
                return True
            return not taken

        until(has_ended, "the end of the connection")


def test_an_answer_that_goes_on_is_not_ended_by_time_or_by_others():
    with serving() as (port, _, clock), ExitStack() as stack:
        [stream] = idle(stack, port, 1, b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        assert stream.recv(10)
        clock.ahead = 3600.0
        idle(stack, port, 2 * LIMITS.connections)
        for _ in range(30):  # more than a second
            assert stream.recv(1 << 16)


def test_a_request_that_begins_before_the_work_of_the_earlier_one_has_ended_is_not_ended_by_time_either():
    with serving() as (port, connections, clock), ExitStack() as stack:
        [stream] = idle(stack, port, 1, b"GET /late HTTP/1.1\r\nhost: x\r\n\r\nGET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        until(lambda: b"tick" in stream.recv(1 << 16))
        LATE.set()
        until(lambda: [one._requests for one in connections._open.values()] == [1])
        clock.ahead = 3600.0
        for _ in range(30):  # more than a second
            assert stream.recv(1 << 16)


def test_a_second_request_on_a_connection_has_to_arrive_in_time_too():
    with serving() as (port, _, clock), ExitStack() as stack:
        [sock] = idle(stack, port, 1, b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost")
        until(lambda: b"\r\n\r\n" in sock.recv(1 << 16, socket.MSG_PEEK))
        sock.recv(1 << 16)
        clock.ahead = LIMITS.following + 1.0
        until(lambda: is_closed(sock), "the end of the connection")
