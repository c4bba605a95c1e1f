"""What is looked up for a viewer: usage and dashboards of a Prometheus, and the doctor's findings, if enabled."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import jsonschema
import pytest

from dra_driver.tools.schemas import schema_of
from dra_driver.tools.usage.dashboards import dashboard, gpu_dashboards
from dra_driver.tools.usage.from_prometheus import PrometheusAddress
from dra_driver.tools.world.access import DocumentKind
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import fill
from tests.support.console.process import running_console
from tests.support.console.server import running_server
from tests.support.metering.prometheus_double import PrometheusDouble
from tests.support.metering.usage_week import week
from tests.support.waiting import until


@pytest.fixture(scope="module")
def prometheus():
    double = PrometheusDouble(list(week()), datetime.now(UTC) - timedelta(hours=168))
    double.series = {"train": [1.0, 2.0, 3.0], "web": [4.0, float("nan"), 2.0]}
    yield double
    double.stop()


@pytest.fixture(scope="module")
def measured(prometheus):
    with running_console("--fleet", "demo-h100", "--prometheus", prometheus.url) as console:
        console.ready()
        yield console


def valid(reply, kind):
    assert reply.status == 200, reply.body
    jsonschema.validate(reply.json, schema_of(kind))
    return reply.json


def test_the_error_of_a_disabled_lookup_says_how_to_enable_it(console):
    assert not any(console.ask("offers").json[name] for name in ("doctor", "usage", "dashboard"))
    for name, hint in (("usage", "--prometheus"), ("dashboard", "--prometheus"), ("doctor", "dra-driver doctor")):
        reply = console.ask(name)
        assert (reply.status, reply.json["error"]["code"]) == (404, "off")
        assert hint in reply.json["error"]["hint"]


def test_usage_is_grouped_by_what_the_command_groups_by():
    from dra_driver.tools.console.lookups import GROUPINGS
    from dra_driver.tools.usage.usage_document import Grouping

    assert set(GROUPINGS) == set(map(str, Grouping))


def test_usage_is_the_document_of_the_command(measured):
    found = valid(measured.ask("usage", "?days=30&by=namespace"), DocumentKind.USAGE_REPORT)
    assert {"train", "web", "lab"} <= {row["name"] for row in found["rows"]}


@pytest.mark.parametrize("name", list(gpu_dashboards()))
def test_every_dashboard_has_its_series_from_prometheus(measured, name):
    found = valid(measured.ask("dashboard", f"?name={name}&hours=24"), DocumentKind.DASHBOARD)
    lines = next(one for one in found["panels"] if one["kind"] == "lines")
    assert lines["fault"] is None
    assert [value for _, value in lines["series"][0]["points"]] == [4.0, None, 2.0], "the largest is not the first"


def test_no_variable_of_grafana_is_left_in_a_query(measured, prometheus):
    prometheus.asked.clear()
    for name in gpu_dashboards():
        measured.ask("dashboard", f"?name={name}")
    assert prometheus.asked
    assert not [query for query, _ in prometheus.asked if "$" in query]


@pytest.mark.parametrize(
    "query",
    [
        *("usage?days=x", "usage?by=nothing", "usage?namespace=A/b", "usage?namespace=--help"),
        *("dashboard?name=x", "dashboard?hours=0", "dashboard?hours=99999999999"),
    ],
)
def test_an_invalid_lookup_is_refused(measured, query):
    name, _, rest = query.partition("?")
    reply = measured.ask(name, f"?{rest}")
    assert (reply.status, reply.json["error"]["code"]) == (422, "input.question")


@pytest.mark.parametrize("age", [timedelta(minutes=4), timedelta(minutes=25), timedelta(hours=7)], ids=str)
def test_a_prometheus_that_is_younger_than_the_chosen_time_is_believed_from_its_beginning(age):
    double, now = PrometheusDouble([]), datetime.now(UTC)
    double.born, double.rates = now - age, {(("model", "H100"),): 16.0}
    try:
        found = dashboard(PrometheusAddress(double.url), "fleet", 7 * 24, now).wire()
    finally:
        double.stop()
    assert abs(datetime.fromisoformat(found["begin"]) - double.born) <= timedelta(minutes=1)
    for panel in found["panels"]:
        [line] = panel["series"]
        assert line["points"], panel["title"]
        assert all(15.0 <= value <= 16.0 for _, value in line["points"]), panel["title"]
        assert len(line["points"]) == 1 or panel["kind"] == "lines"


def test_figures_are_of_now_and_lines_of_the_whole_time():
    double, now = PrometheusDouble([]), datetime.now(UTC)
    double.born, double.rates = now - timedelta(days=90), {(("model", "H100"),): 16.0}
    try:
        found = dashboard(PrometheusAddress(double.url), "fleet", 7 * 24, now).wire()
    finally:
        double.stop()
    assert datetime.fromisoformat(found["begin"]) == now - timedelta(days=7)
    backs = {one["kind"]: len(one["series"][0]["points"]) for one in found["panels"]}
    assert backs == {"figure": 1, "lines": 121}
    assert {seconds for query, _ in double.asked for seconds in re.findall(r"\[(\d+)s\]", query)} == {"300", "5100"}


def test_series_of_one_panel_have_different_names():
    double, now = PrometheusDouble([]), datetime.now(UTC)
    double.born = now - timedelta(days=90)
    shared = {"Hostname": "n1", "gpu": "0"}
    double.rates = {
        tuple({**shared, "dra_claim_name": claim}.items()): 40.0 for claim in ("train", "serve")
    } | {(("Hostname", "n1"), ("gpu", "1")): 30.0}  # fmt: skip
    try:
        found = dashboard(PrometheusAddress(double.url), "health", 6, now).wire()
    finally:
        double.stop()
    panel = next(one for one in found["panels"] if one["title"] == "Hottest GPUs")
    names = [one["name"] for one in panel["series"]]
    assert names == ["n1 GPU 0 train", "n1 GPU 0 serve", "n1 GPU 1"]


HOSTILE = (
    b"[]",
    b"{}",
    b'{"status": "success", "data": {"result": 5}}',
    b'{"status": "success", "data": {"result": [{"metric": 5, "values": [[1, "x"], 7]}]}}',
    b"\xff" * 100,
)


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_of_a_prometheus_are_faults_of_their_panels(measured, prometheus, answer):
    prometheus.answer = answer
    try:
        found = valid(measured.ask("dashboard", "?name=fleet"), DocumentKind.DASHBOARD)
    finally:
        prometheus.answer = None
    assert all(one["fault"] or not one["series"] for one in found["panels"])


def test_times_that_no_calendar_has_are_no_beginning_of_the_data(measured, prometheus):
    prometheus.answer = (
        b'{"status": "success", "data": {"result": [{"metric": {}, "values": [[1e300, "1"], [-1e300, "2"]]}]}}'
    )
    try:
        found = valid(measured.ask("dashboard", "?name=fleet&hours=24"), DocumentKind.DASHBOARD)
    finally:
        prometheus.answer = None
    assert datetime.fromisoformat(found["end"]) - datetime.fromisoformat(found["begin"]) == timedelta(hours=24)


def test_a_viewer_gets_usage_of_their_own_namespaces_and_the_doctor_by_their_own_token(tmp_path, prometheus):
    with GuardedApi() as api:
        fill(api)
        api.add("admin-token", "admin", *((one, "") for one in EVERYTHING))
        api.add("web-token", "web", ("resourceclaims", "web"), ("resourceslices", ""))
        path = api.write_kubeconfig(tmp_path / "kubeconfig")
        with running_server(str(path), "--prometheus", prometheus.url, "--namespace", "web") as server:
            until(lambda: server.ask("web-token", "offers").status == 200)
            assert server.ask("web-token", "offers").json == {
                "doctor": True, "usage": True, "dashboard": False, "namespaces": ["web"],
            }  # fmt: skip
            own = valid(server.ask("web-token", "usage", "?namespace=web&days=30&by=claim"), DocumentKind.USAGE_REPORT)
            assert own["rows"]
            assert all(row["name"].startswith("web/") for row in own["rows"])
            for query in ("?namespace=train", "?namespace=", ""):
                assert server.ask("web-token", "usage", query).status == 422
            assert server.ask("web-token", "dashboard").status == 404
            assert server.ask("admin-token", "dashboard").status == 200
            api.seen.clear()
            valid(server.ask("web-token", "doctor"), DocumentKind.DOCTOR_REPORT)
            assert api.seen == {"web"}


def test_the_doctor_is_off_with_identity_review_because_it_would_see_more_than_the_viewer_may(tmp_path):
    with GuardedApi() as api:
        fill(api)
        api.add("admin-token", "admin", *((one, "") for one in EVERYTHING))
        path = api.write_kubeconfig(tmp_path / "kubeconfig")
        with running_server(str(path), "--identity", "review") as server:
            until(lambda: server.ask("admin-token", "offers").status == 200)
            assert server.ask("admin-token", "doctor").status == 404
