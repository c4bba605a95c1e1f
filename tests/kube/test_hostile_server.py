"""What a server or a proxy in front of it can do to a caller between the connection and the end of the answer."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, StaticToken, TlsMaterial
from tests.kube.support.http_script import ScriptedServer
from tests.kube.support.raw_server import OK, RawServer
from tests.support.api.certificates import make_ca, make_leaf, server_context
from tests.support.waiting import unhindered

FINE = OK + b'Content-Length: 8\r\n\r\n{"a": 1}'


def plain(url: str, **options: int) -> KubeApi:
    return KubeApi(Credentials(url, StaticToken()), **options)


@contextmanager
def listener(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve every connection with `handle`, in a thread of its own. Yield host and port."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                handle(connection)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(made.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{made.getsockname()[1]}"
        made.shutdown(socket.SHUT_RDWR)


@contextmanager
def soon():
    """Fail if this thread computes for long; other work on the machine does not count."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < 5


def test_a_header_field_with_many_blanks_is_read_in_time():
    head = OK + b"a: x" + b" " * 60_000 + b"x\r\nContent-Length: 8\r\n\r\n"
    with RawServer(lambda: [head, b'{"a": 1}']) as server, soon():
        assert plain(server.url).request("GET", "/x", timeout_s=60) == {"a": 1}


def test_a_malformed_header_field_with_many_blanks_is_refused_in_time():
    head = OK + b"a:" + b" " * 100_000 + b"\x01\r\n\r\n"
    with RawServer(lambda: [head]) as server, soon(), pytest.raises(ApiError, match="is not HTTP"):
        plain(server.url).request("GET", "/x", timeout_s=60)


def slow_reader(context: ssl.SSLContext, taken: list[int]) -> Callable[[socket.socket], None]:
    """Read a request at 1.6 MiB/s at most, and append the size of each piece to `taken`."""

    def handle(connection: socket.socket) -> None:
        connection = context.wrap_socket(connection, server_side=True)
        while piece := connection.recv(16384):
            taken.append(len(piece))
            time.sleep(0.01)

    return handle


def test_a_request_to_a_server_that_reads_slowly_ends_at_its_timeout(tmp_path):
    make_ca(tmp_path, "ca")
    context = server_context(*make_leaf(tmp_path, "server", "ca"))
    tls = TlsMaterial(ca_file=str(tmp_path / "ca.crt"))
    taken: list[int] = []
    with listener(slow_reader(context, taken)) as address:
        api = KubeApi(Credentials(f"https://{address}", StaticToken(), tls))
        with pytest.raises(ApiError) as caught:
            api.request("POST", "/x", body={"a": "x" * (16 << 20)}, timeout_s=1)
        assert sum(taken) < 8 << 20
    assert caught.value.code == "api.timeout"


def test_the_wait_for_a_free_connection_counts_against_the_callers_time():
    def script(exchange):
        exchange.server.stopping.wait(2.0)
        exchange.answer(200, {"a": 1})

    with ScriptedServer(script) as server:
        api = plain(server.url, connections=1)
        first = threading.Thread(target=api.request, args=("GET", "/first"))
        first.start()
        while not server.seen:
            time.sleep(0.01)
        with pytest.raises(ApiError) as caught:
            api.request("GET", "/second", timeout_s=2.5)
        first.join()
    assert caught.value.code == "api.timeout"


def test_addresses_that_do_not_answer_share_the_callers_time(monkeypatch):
    with ExitStack() as held, RawServer(lambda: [FINE]) as server:
        full = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than the queue holds: the kernel makes all further connections wait
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        good = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", where) for where in (full.getsockname(), good)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert plain("http://api.test:1").request("GET", "/x", timeout_s=10) == {"a": 1}
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1] * 100)
        with pytest.raises(ApiError) as caught:
            unhindered(lambda: plain("http://api.test:1").request("GET", "/x", timeout_s=1))
    assert caught.value.code == "api.timeout"


def test_a_connection_that_ends_within_the_tls_handshake_is_not_an_error_of_certificates(tmp_path):
    make_ca(tmp_path, "ca")
    with listener(lambda connection: connection.recv(65536) and None) as address:
        api = KubeApi(Credentials(f"https://{address}", StaticToken(), TlsMaterial(ca_file=str(tmp_path / "ca.crt"))))
        with pytest.raises(ApiError) as caught:
            api.request("GET", "/x")
        stream = api.stream("/x", query={}, max_s=5)
        with pytest.raises(ApiError) as of_stream:
            stream.open()
    assert {(one.value.code, one.value.retry) for one in (caught, of_stream)} == {("api.unreachable", Retry.NOW)}


def test_a_refusal_that_comes_before_the_whole_request_was_read_is_understood():
    body = json.dumps({"kind": "Status", "reason": "TooManyRequests"}).encode()

    def refuse(connection: socket.socket) -> None:
        connection.recv(1024)
        head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)

    with listener(refuse) as address, pytest.raises(ApiError) as caught:
        plain(f"http://{address}").request("POST", "/x", body={"a": "x" * (8 << 20)}, timeout_s=60)
    assert (caught.value.code, caught.value.retry_after_s) == ("api.too-many-requests", 7)


def test_a_number_that_is_too_large_for_json_is_a_clear_error():
    answer = b'{"metadata": {"generation": 1e999}}'
    whole = OK + b"Content-Length: %d\r\n\r\n" % len(answer) + answer
    with RawServer(lambda: [whole]) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("GET", "/x")
    assert caught.value.code == "api.bad-answer"


def test_a_408_on_an_idle_connection_is_not_the_answer_to_a_later_request():
    late = threading.Event()

    def handle(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(FINE)
            if not late.is_set():
                connection.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                late.set()

    with listener(handle) as address:
        api = plain(f"http://{address}")
        assert api.request("GET", "/x") == {"a": 1}
        assert late.wait(60)
        assert api.request("POST", "/x", body={}) == {"a": 1}


def test_fifty_threads_each_get_the_answer_to_their_own_request(tmp_path: Path):
    make_ca(tmp_path, "ca")
    served = [0]

    def script(exchange):
        served[0] += 1
        if served[0] % 7 == 0:
            exchange.close_connection = True
        if served[0] % 5:
            exchange.answer(200, {"path": exchange.path})
        else:
            exchange.answer(503, {"kind": "Status", "message": exchange.path})

    wrong: list[object] = []

    def ask(api: KubeApi, number: int) -> None:
        for turn in range(6):
            path = f"/{number}/{turn}"
            try:
                if (answer := api.request("GET", path, timeout_s=30)) != {"path": path}:
                    wrong.append((path, answer))
            except ApiError as err:
                if err.status != 503 or f"503 {path}" not in str(err):
                    wrong.append((path, err))

    with ScriptedServer(script, server_context(*make_leaf(tmp_path, "server", "ca"))) as server:
        tls = TlsMaterial(ca_file=str(tmp_path / "ca.crt"))
        api = KubeApi(Credentials(server.url, StaticToken(), tls), connections=8)
        threads = [threading.Thread(target=ask, args=(api, number)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not wrong
