"""The status port under attack, over real sockets."""

import contextlib
import select
import socket
import threading
import time

import pytest

from dra_driver.base.telemetry.status_server import MAX_CONNECTIONS, MAX_PAGE_CLIENTS, PageResponse, Port
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


@pytest.fixture
def open_port():
    ports = []

    def start(**options) -> Port:
        pages = options.pop("pages", {"/metrics": lambda: PageResponse(200, b"x" * 100_000)})
        ports.append(Port(("127.0.0.1", 0), pages, quick={"/healthz": PageResponse(200, b"ok\n")}, **options))
        ports[-1].start()
        return ports[-1]

    yield start
    for port in ports:
        port.stop()


def connect(port: Port, sent: bytes = b"", timeout: float = 60.0) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port.number), timeout=timeout)
    with contextlib.suppress(OSError):
        client.sendall(sent)
    return client


def rest(client: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            received += piece
    return received


def get(port: Port, path: str, method: str = "GET") -> bytes:
    with connect(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()) as client:
        return rest(client)


def status(answer: bytes) -> str:
    return answer.decode().split()[1] if answer else ""


def test_a_page_comes_whole_and_ends_the_connection(open_port):
    port = open_port()
    answer = get(port, "/metrics")
    assert answer.endswith(b"\r\n\r\n" + b"x" * 100_000)
    assert b"Connection: close" in answer
    assert get(port, "/metrics?name=a").endswith(b"x" * 100_000)
    assert get(port, "/metrics", "HEAD").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", "404"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", "405"),
        (b"hello\r\n\r\n", "400"),
        (b"\x16\x03\x01\r\n\r\n", "400"),
        (b"GET /" + b"x" * 9000, "431"),
        (b"GET /" + b"x" * 8000 + b" HTTP/1.1\r\n" + b"a: b\r\n" * 100, "431"),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 2000, "431"),
    ],
)
def test_what_is_no_request_for_a_page_is_refused(open_port, sent, expected):
    with connect(open_port(), sent) as client:
        assert status(rest(client)) in {expected, ""}  # bytes that were not read may have reset the connection


def test_probes_are_answered_while_thousands_of_clients_send_no_request(open_port):
    before = threading.active_count()
    port = open_port()
    silent = []
    for index in range(4 * MAX_CONNECTIONS):
        silent.append(connect(port, b"GET /healthz HT"[: index % 16]))
        if index % 100 == 99:
            assert status(get(port, "/healthz")) == "200"
            assert status(get(port, "/metrics")) == "200"
    for client in silent[:-MAX_CONNECTIONS]:
        assert rest(client) == b""  # the oldest were closed
    until(lambda: threading.active_count() <= before + MAX_CONNECTIONS + 16)  # those that were closed have ended
    for client in silent:
        client.close()


def test_a_client_that_sends_a_byte_at_a_time_is_disconnected(open_port):
    port = open_port(connection_s=0.3)
    with connect(port) as client, contextlib.suppress(ConnectionError):
        while True:
            client.sendall(b"G")
            time.sleep(0.02)


def test_a_client_that_does_not_read_the_answer_is_disconnected(open_port):
    large, asked = b"x" * (64 << 20), threading.Event()
    port = open_port(connection_s=0.3, pages={"/metrics": lambda: asked.set() or PageResponse(200, large)})
    before = threading.active_count()
    with connect(port, b"GET /metrics HTTP/1.1\r\n\r\n") as client:
        assert asked.wait(60)
        until(lambda: threading.active_count() <= before)
        assert len(rest(client)) < len(large)
        until(lambda: status(get(port, "/healthz")) == "200")  # on a busy machine 0.3 s may pass before an answer


def test_a_page_that_hangs_delays_no_other(open_port):
    released = threading.Event()

    def hang() -> PageResponse:
        released.wait(60)
        return PageResponse(200, b"")

    port = open_port(pages={"/metrics": hang, "/readyz": lambda: PageResponse(200, b"ok\n")})
    scrapes = [connect(port, b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(MAX_PAGE_CLIENTS + 1)]
    (refused,), _, _ = select.select(scrapes, [], [], 60)  # one too many, whichever was accepted last
    assert status(get(port, "/healthz")) == "200"
    assert status(get(port, "/readyz")) == "200"
    released.set()
    for client in scrapes:
        assert status(rest(client)) == ("503" if client is refused else "200")
        client.close()


def test_many_scrapes_at_once_cost_few_renderings(open_port):
    times = []

    def render() -> PageResponse:
        times.append(1)
        return PageResponse(200, b"")

    port = open_port(pages={"/metrics": render})
    for _ in range(10):
        scrapes = [connect(port, b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(MAX_PAGE_CLIENTS)]
        assert [status(rest(client)) for client in scrapes] == ["200"] * MAX_PAGE_CLIENTS
        for client in scrapes:
            client.close()
    assert len(times) < 100


def test_a_page_is_never_older_than_the_request_for_it(open_port):
    count = iter(range(100))
    port = open_port(pages={"/metrics": lambda: PageResponse(200, b"%d" % next(count))})
    assert [get(port, "/metrics").split()[-1] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_probe_is_answered_while_no_thread_can_be_started(open_port):
    port = open_port()
    with no_thread_starts():
        assert status(get(port, "/healthz")) == "200"
        assert status(get(port, "/metrics")) == "200"


def test_a_page_with_a_fault_is_a_500_and_the_port_goes_on(open_port):
    port = open_port(pages={"/metrics": lambda: 1 // 0})
    assert status(get(port, "/metrics")) == "500"
    assert status(get(port, "/healthz")) == "200"


def test_a_stopped_port_is_free_at_once(open_port):
    port = open_port()
    waiting = connect(port)
    port.stop()
    assert rest(waiting) == b""
    with socket.create_server(("127.0.0.1", port.number)):
        pass
