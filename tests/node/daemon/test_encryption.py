"""The metrics port with TLS: a real client, certificates that are replaced, and clients that don't speak TLS."""

import contextlib
import http.client
import shutil
import socket
import ssl

import pytest

from dra_driver.base.telemetry.status_server import PageResponse, Port
from dra_driver.node.daemon.status_page import CHECK_SECONDS, MountedCertificate
from tests.support.api.certificates import make_ca, make_leaf

BODY = b"x" * 3_000_000  # more than the buffers of a connection hold


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("first-ca", "second-ca"):
        make_ca(folder, ca)
        make_leaf(folder, f"of-{ca}", ca)
    return folder


@pytest.fixture
def mounted(tmp_path, made):
    def put(ca):
        for ending, name in (("crt", "tls.crt"), ("key", "tls.key")):
            shutil.copy(made / f"of-{ca}.{ending}", tmp_path / "new")
            (tmp_path / "new").replace(tmp_path / name)

    put.folder = tmp_path
    return put


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def port(mounted, clock):
    one = Port(
        ("127.0.0.1", 0),
        {"/metrics": lambda: PageResponse(200, BODY)},
        quick={},
        encryption=MountedCertificate(mounted.folder, clock=clock),
    )
    one.start()
    yield one
    one.stop()


def scrape(port, made, ca):
    context = ssl.create_default_context(cafile=str(made / f"{ca}.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", port.number, context=context, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_page_is_sent_whole_over_tls_and_never_unencrypted(port, mounted, made):
    mounted("first-ca")
    assert scrape(port, made, "first-ca") == (200, BODY)
    with pytest.raises(ssl.SSLCertVerificationError):
        scrape(port, made, "second-ca")
    with socket.create_connection(("127.0.0.1", port.number), timeout=60) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"200" not in plain.recv(4096)
    assert scrape(port, made, "first-ca")[0] == 200


def test_a_renewed_certificate_is_used_and_one_that_is_broken_is_not(port, mounted, made, clock):
    mounted("first-ca")
    assert scrape(port, made, "first-ca")[0] == 200
    (mounted.folder / "tls.key").write_text("half a key")
    clock.now += CHECK_SECONDS
    assert scrape(port, made, "first-ca")[0] == 200
    mounted("second-ca")
    clock.now += CHECK_SECONDS
    assert scrape(port, made, "second-ca")[0] == 200


def test_without_a_certificate_no_connection_is_answered_until_there_is_one(port, mounted, made, clock):
    with pytest.raises(OSError, match=r"(?i)reset|EOF|closed"):
        scrape(port, made, "first-ca")
    mounted("first-ca")
    clock.now += CHECK_SECONDS
    assert scrape(port, made, "first-ca")[0] == 200


def test_clients_that_never_finish_the_handshake_delay_no_other(port, mounted, made):
    mounted("first-ca")
    silent = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(300)]
    for each in silent[::2]:
        each.sendall(b"\x16\x03\x01")
    assert scrape(port, made, "first-ca")[0] == 200
    for each in silent:
        each.close()
