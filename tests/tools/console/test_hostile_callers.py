"""Callers without a valid token: what they send takes no memory, and their tokens little of the API server's time."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dra_driver.tools.console.cluster_reader import Rights
from dra_driver.tools.console.sign_in import AdmittedViewer, PresentedIdentity
from dra_driver.tools.console.viewers import FRESH_SECONDS, Admissions, TooFastError
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import fill
from tests.support.console.server import running_server

ALL = [(one, "") for one in EVERYTHING]


class CountingApi(GuardedApi):
    """An API server that counts requests with tokens that nobody has, and answers them when it is allowed to."""

    def __init__(self):
        super().__init__()
        self.unknown = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def _user(self, request):
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.users:
            self.unknown += 1
            self.may_answer.wait(60)
        return super()._user(request)


@pytest.fixture
def running(tmp_path):
    with CountingApi() as api:
        fill(api)
        api.add("admin-token", "admin", *ALL)
        with running_server(str(api.write_kubeconfig(tmp_path / "config")), "--namespace", "team-a") as server:
            yield api, server
            api.may_answer.set()


def memory_of(pid):
    """Return the most memory that a process has had so far, in bytes."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) << 10


def sign_in_head(port, length):
    origin = f"http://localhost:{port}"
    kind = f"content-length: {length}" if length else "transfer-encoding: chunked"
    return f"POST /sign-in HTTP/1.1\r\nhost: localhost:{port}\r\norigin: {origin}\r\n{kind}\r\n\r\n".encode()


def test_a_body_that_is_too_large_for_a_token_is_refused_before_it_is_read(running):
    _, server = running
    before = memory_of(server.pid)
    with ExitStack() as stack:
        opened = []
        for _ in range(150):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            sock.sendall(sign_in_head(server.port, 2 << 20))
            opened.append(sock)
        for sock in opened:
            assert sock.recv(100).startswith(b"HTTP/1.1 413")
            sock.setblocking(False)
            for _ in range(4):
                with suppress(OSError):  # the console reads it only to drop it, or not at all
                    sock.send(b"x" * (1 << 19))
        assert server.send("GET", "/healthz").status == 200
    assert memory_of(server.pid) - before < 32 << 20


def test_a_body_without_a_length_is_cut_off_after_the_length_of_a_token(running):
    _, server = running
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(sign_in_head(server.port, 0))
        for _ in range(3):
            sock.sendall(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 4")


def test_tokens_that_nobody_has_reach_the_api_server_at_a_limited_pace(running):
    api, server = running
    began = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda number: server.ask(f"guess-{number}", "offers"), range(400)))
    statuses = {one.status for one in replies}
    assert statuses == {401, 429}
    assert all(int(one.headers["retry-after"]) > 0 for one in replies if one.status == 429)
    assert api.unknown <= 20 + 1 + (time.monotonic() - began)
    assert server.ask("admin-token", "offers").status == 429, "the peer is as anybody else until it was admitted"


def test_the_verdict_on_a_known_viewer_is_renewed_while_unknown_tokens_wait():
    hold = threading.Event()

    class Resolver:
        def resolve(self, one):
            if one.token != "known":
                hold.wait(60)
                return None
            return AdmittedViewer("known", Rights(), None, user="alice")

    async def requests():
        now = [1000.0]
        admissions = Admissions(Resolver(), lambda: now[0])
        assert await admissions.admit(PresentedIdentity("known"))
        waiting = [
            asyncio.create_task(admissions.admit(PresentedIdentity(f"guess-{n}"), f"peer-{n}")) for n in range(40)
        ]
        await asyncio.sleep(0)
        now[0] += FRESH_SECONDS
        async with asyncio.timeout(10):
            assert await admissions.admit(PresentedIdentity("known"))
        hold.set()
        assert await asyncio.gather(*waiting) == [None] * 40
        admissions.close()

    asyncio.run(requests())


def test_refused_tokens_push_no_known_viewer_out_and_one_user_has_only_some_verdicts():
    asked = []

    class Resolver:
        def resolve(self, one):
            asked.append(one.token)
            user = one.token.partition("-")[0]
            return None if user == "guess" else AdmittedViewer(one.token, Rights(), None, user=user)

    async def requests():
        now = [0.0]
        admissions = Admissions(Resolver(), lambda: now[0])
        assert await admissions.admit(PresentedIdentity("alice-1"))
        for number in range(3_000):
            now[0] += 0.001
            for user in ("guess", "mallory") if number < 50 else ("guess",):
                with suppress(TooFastError):
                    await admissions.admit(PresentedIdentity(f"{user}-{number}"), f"peer-{number}")
        asked.clear()
        assert await admissions.admit(PresentedIdentity("alice-1"))
        assert asked == [], "the verdict on a known viewer was forgotten"
        assert sum(one.user == "mallory" for _, one in admissions._known.values()) == 16
        admissions.close()

    asyncio.run(requests())
