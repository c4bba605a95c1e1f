"""KubeApi against real HTTP: the embedded API server, and scripted ones for what it never does."""

import socket
import threading
import time

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.kubeconfig import Credentials, StaticToken, TlsMaterial, TokenFile
from dra_driver.simulator.api_server import EmbeddedApi
from tests.kube.support.http_script import ScriptedServer
from tests.support.api.certificates import make_ca, make_leaf, server_context
from tests.support.waiting import unhindered, until


@pytest.fixture
def embedded():
    with EmbeddedApi(version="1.35") as server:
        yield server


@pytest.fixture
def api(embedded, tmp_path):
    with_file = embedded.write_kubeconfig(tmp_path / "config", token_file=tmp_path / "token")
    api = KubeApi(load_credentials(str(with_file)))
    yield api
    api.close()


def plain(url: str, token: str = "", **options) -> KubeApi:
    return KubeApi(Credentials(url, StaticToken(token)), **options)


def hello(exchange) -> None:
    exchange.answer(200, {"hello": "world"})


def test_an_object_comes_back_as_a_plain_dict(api, embedded):
    embedded.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}}})
    assert api.get_node("n1")["metadata"]["labels"] == {"a": "b"}


def test_the_server_version_is_read_as_two_numbers_and_a_string(api):
    version = api.server_version()
    assert (version.major, version.minor, version.git) == (1, 35, "v1.35.0")


@pytest.mark.parametrize(("minor", "expected"), [("34+", 34), ("", 0), (None, 0), ("x", 0)])
def test_a_vendors_minor_version_is_read_up_to_its_last_digit(minor, expected):
    with ScriptedServer(lambda e: e.answer(200, {"major": "1", "minor": minor, "gitVersion": "v"})) as server:
        assert plain(server.url).server_version().minor == expected


@pytest.mark.parametrize(
    ("status", "code", "retry"),
    [
        (400, "api.bad-request", Retry.LATER),
        (403, "api.forbidden", Retry.LATER),
        (404, "api.not-found", Retry.LATER),
        (409, "api.conflict", Retry.NOW),
        (410, "api.gone", Retry.NOW),
        (422, "api.invalid", Retry.LATER),
        (429, "api.too-many-requests", Retry.NOW),
        (500, "api.unavailable", Retry.NOW),
        (503, "api.unavailable", Retry.NOW),
        (418, "api.refused", Retry.NEVER),
    ],
)
def test_a_refusal_carries_status_code_message_and_whether_to_try_again(status, code, retry):
    body = {"kind": "Status", "message": "because", "reason": "Whatever", "code": status}
    with ScriptedServer(lambda e: e.answer(status, body)) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("PUT", "/x", body={})
    assert (caught.value.status, caught.value.code, caught.value.retry) == (status, code, retry)
    assert "PUT /x" in caught.value.message
    assert "because" in caught.value.message


def test_a_name_that_is_taken_is_an_error_that_no_retry_solves():
    body = {"kind": "Status", "reason": "AlreadyExists", "message": "taken"}
    with ScriptedServer(lambda e: e.answer(409, body)) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("POST", "/x", body={})
    assert (caught.value.code, caught.value.retry) == ("api.already-exists", Retry.NEVER)


@pytest.mark.parametrize("body", [b"404 page not found\n", b"<html>", b"{}", {"kind": "Error", "message": "no route"}])
def test_a_404_without_a_status_object_means_that_the_path_is_not_served(body):
    with ScriptedServer(lambda e: e.answer(404, body)) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("GET", "/apis/resource.k8s.io/v1/resourceslices")
    assert (caught.value.status, caught.value.code) == (404, "api.not-served")
    assert "1.34" in caught.value.hint


@pytest.mark.parametrize(("headers", "body"), [({"Retry-After": "7"}, {}), ({}, {"details": {"retryAfterSeconds": 7}})])
def test_the_time_to_wait_that_the_server_asks_for_is_passed_on(headers, body):
    with ScriptedServer(lambda e: e.answer(429, body, headers)) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("GET", "/x")
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("retry_after", ["99999999999", "9" * 400])
def test_a_time_to_wait_is_five_minutes_at_most(retry_after):
    with (
        ScriptedServer(lambda e: e.answer(429, {}, {"Retry-After": retry_after})) as server,
        pytest.raises(ApiError) as caught,
    ):
        plain(server.url).request("GET", "/x")
    assert caught.value.retry_after_s == 300.0


@pytest.mark.parametrize("retry_after", ["soon", "-1", "\xb2", "1.5"])
def test_a_time_to_wait_that_is_not_a_number_of_seconds_is_ignored(retry_after):
    with (
        ScriptedServer(lambda e: e.answer(429, {}, {"Retry-After": retry_after})) as server,
        pytest.raises(ApiError) as caught,
    ):
        plain(server.url).request("GET", "/x")
    assert (caught.value.code, caught.value.retry_after_s) == ("api.too-many-requests", 0.0)


def test_a_refusal_without_a_status_object_is_an_error_too():
    page = b"<html>bad gateway</html>"
    with ScriptedServer(lambda e: e.answer(502, page)) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("GET", "/x")
    assert (caught.value.code, caught.value.status) == ("api.unavailable", 502)


@pytest.mark.parametrize("body", [b"not json", b"[]", b""])
def test_an_answer_that_is_not_a_json_object_is_an_error(body):
    with ScriptedServer(lambda e: e.answer(200, body)) as server, pytest.raises(ApiError) as caught:
        plain(server.url).request("GET", "/x")
    assert caught.value.code == "api.bad-answer"


def test_a_path_in_the_server_url_is_kept():
    with ScriptedServer(hello) as server:
        plain(server.url + "/k8s/clusters/c-1").request("GET", "/version", query={"a": "b c"})
        assert server.seen[0].path == "/k8s/clusters/c-1/version?a=b+c"


def test_a_stale_token_is_read_again_once_and_the_request_repeated(api, embedded, tmp_path):
    api.request("GET", "/apis/resource.k8s.io/v1/resourceslices")
    embedded.token = "rotated"
    (tmp_path / "token").write_text("rotated")
    api.request("GET", "/apis/resource.k8s.io/v1/resourceslices")
    assert [e.status for e in embedded.log.entries(contains="resourceslices")] == [200, 401, 200]


def test_a_token_that_is_refused_and_not_renewed_is_an_error_after_one_try(api, embedded):
    api.request("GET", "/apis/resource.k8s.io/v1/resourceslices")
    embedded.token = "other"
    with pytest.raises(ApiError) as caught:
        api.request("GET", "/apis/resource.k8s.io/v1/resourceslices")
    assert caught.value.code == "api.unauthorized"
    assert [e.status for e in embedded.log.entries(contains="resourceslices")] == [200, 401]


def test_connections_are_kept_alive():
    ports = set()

    def script(exchange):
        ports.add(exchange.client_address[1])
        hello(exchange)

    with ScriptedServer(script) as server:
        api = plain(server.url)
        for _ in range(5):
            api.request("GET", "/x")
    assert len(ports) == 1


def test_a_get_on_a_kept_connection_that_died_is_sent_again(api, embedded):
    api.request("GET", "/api/v1/namespaces/default")
    embedded.close_connections()
    api.request("GET", "/api/v1/namespaces/default")


def test_a_write_whose_connection_breaks_is_never_sent_twice():
    def script(exchange):
        exchange.body()
        exchange.connection.shutdown(socket.SHUT_RDWR)
        exchange.close_connection = True

    with ScriptedServer(script) as server:
        with pytest.raises(ApiError) as caught:
            plain(server.url).request("POST", "/x", body={})
        assert len(server.seen) == 1
    assert (caught.value.code, caught.value.status, caught.value.retry) == ("api.unreachable", 0, Retry.NOW)


def test_a_server_that_is_not_there_is_unreachable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ApiError) as caught:
            plain(f"http://127.0.0.1:{port}").request("GET", "/x")
    assert (caught.value.code, caught.value.status) == ("api.unreachable", 0)


def test_a_silent_server_costs_the_callers_timeout_and_no_more():
    with ScriptedServer(lambda e: e.server.stopping.wait(60)) as server, pytest.raises(ApiError) as caught:
        unhindered(lambda: plain(server.url).request("GET", "/x", timeout_s=0.2))
    assert (caught.value.code, caught.value.retry) == ("api.timeout", Retry.NOW)


def test_after_a_silent_connection_the_next_request_gets_a_new_one():
    ports = []

    def script(exchange):
        ports.append(exchange.client_address[1])
        if len(ports) == 2:
            exchange.server.stopping.wait(60)
        hello(exchange)

    with ScriptedServer(script) as server:
        api = plain(server.url)
        api.request("GET", "/x")
        with pytest.raises(ApiError):
            api.request("GET", "/x", timeout_s=0.2)
        until(lambda: len(ports) == 2, "the server to have read the request that was given up")
        api.request("GET", "/x")
    assert ports[0] == ports[1] != ports[2]


def test_more_threads_than_connections_wait_for_one_another():
    with ScriptedServer(hello) as server:
        api = plain(server.url, connections=2)
        faults = []

        def ask():
            try:
                for _ in range(5):
                    api.request("GET", "/x")
            except Exception as err:
                faults.append(err)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert len({e.client_address[1] for e in server.seen}) <= 2


def over_tls(url: str, **material) -> KubeApi:
    return KubeApi(
        Credentials(url, StaticToken("t"), TlsMaterial(**material)), clock=material.pop("clock", time.monotonic)
    )


def test_a_server_is_trusted_if_its_certificate_is_signed_by_the_given_ca_and_not_by_another(tmp_path):
    make_ca(tmp_path, "ca")
    make_ca(tmp_path, "other")
    context = server_context(*make_leaf(tmp_path, "server", "ca"))
    with ScriptedServer(hello, context) as server:
        assert over_tls(server.url, ca_file=str(tmp_path / "ca.crt")).request("GET", "/x")
        assert over_tls(server.url, ca_pem=(tmp_path / "ca.crt").read_text()).request("GET", "/x")
        assert over_tls(server.url, is_unverified=True).request("GET", "/x")
        with pytest.raises(ApiError) as caught:
            over_tls(server.url, ca_file=str(tmp_path / "other.crt")).request("GET", "/x")
    assert caught.value.code == "api.tls"


def test_a_server_of_another_name_needs_tls_server_name(tmp_path):
    make_ca(tmp_path, "ca")
    context = server_context(*make_leaf(tmp_path, "server", "ca"))
    ca = str(tmp_path / "ca.crt")
    with ScriptedServer(hello, context) as server:
        assert over_tls(server.url, ca_file=ca, server_name="kubernetes.default.svc").request("GET", "/x")
        with pytest.raises(ApiError):
            over_tls(server.url, ca_file=ca, server_name="elsewhere").request("GET", "/x")


def test_a_client_certificate_is_presented_from_files_and_from_inline_data(tmp_path):
    make_ca(tmp_path, "ca")
    certificate, key = make_leaf(tmp_path, "client", "ca")
    context = server_context(*make_leaf(tmp_path, "server", "ca"), client_ca=tmp_path / "ca.crt")
    ca = str(tmp_path / "ca.crt")
    with ScriptedServer(hello, context) as server:
        files = over_tls(server.url, ca_file=ca, cert_file=str(certificate), key_file=str(key))
        assert files.request("GET", "/x")
        inline = over_tls(server.url, ca_file=ca, cert_pem=certificate.read_bytes(), key_pem=key.read_bytes())
        assert inline.request("GET", "/x")
        with pytest.raises(ApiError):
            over_tls(server.url, ca_file=ca).request("GET", "/x")


def test_a_rotated_ca_is_used_by_the_next_connection(tmp_path):
    make_ca(tmp_path, "old")
    make_ca(tmp_path, "new")
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes((tmp_path / "old.crt").read_bytes())
    material = TlsMaterial(ca_file=str(bundle))
    with ScriptedServer(hello, server_context(*make_leaf(tmp_path, "first", "old"))) as server:
        api = KubeApi(Credentials(server.url, StaticToken(), material))
        assert api.request("GET", "/x")
        server.tls = server_context(*make_leaf(tmp_path, "second", "new"))
        bundle.write_bytes((tmp_path / "new.crt").read_bytes())
        api.close()  # no connection is left, so the next one gets the new certificate
        assert api.request("POST", "/x", body={})


def test_a_half_written_ca_file_does_not_cut_off_a_working_client(tmp_path):
    make_ca(tmp_path, "ca")
    bundle, now = tmp_path / "bundle.crt", [0.0]
    bundle.write_bytes((tmp_path / "ca.crt").read_bytes())
    with ScriptedServer(hello, server_context(*make_leaf(tmp_path, "server", "ca"))) as server:
        api = KubeApi(Credentials(server.url, StaticToken(), TlsMaterial(ca_file=str(bundle))), clock=lambda: now[0])
        assert api.request("GET", "/x")
        bundle.write_text("-----BEGIN CERT")
        now[0] += 60.0
        assert api.request("GET", "/x")


def test_a_missing_ca_file_is_an_error_that_names_what_to_look_at():
    with pytest.raises(ApiError) as caught:
        over_tls("https://127.0.0.1:1", ca_file="/nowhere/ca.crt").request("GET", "/x")
    assert caught.value.code == "api.tls-files"
    assert "check the CA" in caught.value.hint


def test_an_error_does_not_contain_the_token(tmp_path):
    path = tmp_path / "token"
    path.write_text("very-secret")
    api = KubeApi(Credentials("http://127.0.0.1:1", TokenFile(str(path))))
    with pytest.raises(ApiError) as caught:
        api.request("GET", "/x")
    assert "very-secret" not in str(caught.value)


def test_a_server_at_an_ipv6_address_is_reached_by_requests_and_streams():
    class OverIpv6(ScriptedServer):
        address_family = socket.AF_INET6
        host = "::1"

    def script(exchange):
        exchange.answer(200, b'{"a": 1}\n')

    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with OverIpv6(script) as server:
        api = plain(f"http://[::1]:{server.server_address[1]}")
        assert api.request("GET", "/x") == {"a": 1}
        stream = api.stream("/x", query={}, max_s=5)
        stream.open()
        assert list(stream.lines()) == [b'{"a": 1}']
        stream.release()
