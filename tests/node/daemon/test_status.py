"""The status page over real HTTP."""

import socket
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import NodeError, UsageError
from dra_driver.base.telemetry.metrics import Metrics, Snapshot
from dra_driver.node.daemon.options import StatusOptions, parse_address
from dra_driver.node.daemon.status_page import StatusPage


def get(port, path, host="127.0.0.1"):
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def open_page(address="", *, metrics=bytes, readiness=tuple, **options):
    return StatusPage(StatusOptions(address, **options), SimpleNamespace(metrics=metrics, unready=readiness))


@pytest.fixture
def reasons():
    return []


@pytest.fixture
def page(reasons):
    metrics = Metrics(lambda: Snapshot(version="9.9.9", vendor="nvidia", devices={"gpu": 8}, prepared_claims=3))
    metrics.claim_answered("prepare", 0.002, "ok")
    metrics.claim_answered("prepare", 0.1, "claim.device-in-use")
    page = open_page("127.0.0.1:0", metrics=metrics.render, readiness=lambda: tuple(reasons))
    page.start()
    yield page
    page.stop()


def test_metrics_show_what_was_counted_and_what_is_read_at_the_scrape(page):
    status, text = get(page.port, "/metrics")
    assert status == 200
    assert 'dra_driver_devices{type="gpu"} 8.0' in text
    assert 'dra_driver_claims_total{code="claim.device-in-use",rpc="prepare"} 1.0' in text
    assert "dra_driver_prepared_claims 3.0" in text
    assert 'dra_driver_build_info{vendor="nvidia",version="9.9.9"} 1.0' in text


def test_readyz_says_what_is_waited_for(page, reasons):
    assert get(page.port, "/readyz") == (200, "ok\n")
    reasons.append("not registered with the kubelet")
    assert get(page.port, "/readyz") == (503, "not registered with the kubelet\n")
    assert get(page.port, "/healthz")[0] == 200


def test_an_unknown_path_is_404(page):
    assert get(page.port, "/nothing")[0] == 404


def test_a_stopped_page_frees_its_port_at_once(page):
    assert get(page.port, "/healthz")[0] == 200
    page.stop()
    again = open_page(f"127.0.0.1:{page.port}")
    again.start()
    assert get(page.port, "/readyz") == (200, "ok\n")
    again.stop()


@pytest.mark.parametrize("text", ["", "9400", "host:", "host:99999", "host:http", "host:\u00b2", "host:\u0663"])
def test_a_wrong_address_is_a_usage_error(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)


def test_a_port_that_is_in_use_is_an_error_that_names_it(page):
    with pytest.raises(NodeError, match=str(page.port)):
        open_page(f"127.0.0.1:{page.port}")


def test_probes_that_have_a_port_of_their_own_are_not_served_on_that_of_the_metrics():
    page = open_page("127.0.0.1:0", probe_address="127.0.0.1:0", metrics=lambda: b"figures\n")
    page.start()
    try:
        assert get(page.port, "/metrics") == (200, "figures\n")
        assert [get(page.probe_port, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 404]
        assert [get(page.port, path)[0] for path in ("/healthz", "/readyz")] == [404, 404]
    finally:
        page.stop()


def test_probes_are_served_where_metrics_are_not():
    page = open_page(probe_address="127.0.0.1:0")
    page.start()
    try:
        assert get(page.probe_port, "/healthz") == (200, "ok\n")
    finally:
        page.stop()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return socket.has_dualstack_ipv6()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("address", "hosts"), [("[::1]:0", ["[::1]"]), (":0", ["127.0.0.1", "[::1]"]), ("[::]:0", ["[::1]"])]
)
def test_the_page_is_served_over_every_ip_version_of_its_address(address, hosts):
    page = open_page(address)
    page.start()
    try:
        assert [get(page.port, "/readyz", host) for host in hosts] == [(200, "ok\n")] * len(hosts)
    finally:
        page.stop()
