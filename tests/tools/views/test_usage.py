"""`dra-driver usage` over a week calculated by hand: hours, costs, advice; and answers of a hostile Prometheus."""

import csv
import io
import json
import re
from pathlib import Path

import jsonschema
import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.usage.advice import profiles_of, size_for
from dra_driver.tools.usage.from_agents import NodeKind, read_prices
from dra_driver.tools.usage.usage_counts import ClaimUsage
from dra_driver.tools.world.access import DocumentKind
from tests.support.metering.prometheus_double import PrometheusDouble
from tests.support.metering.usage_week import A100, BEGIN, END, GIB, H100, PRICES, Line, week


@pytest.fixture
def prometheus():
    double = PrometheusDouble(list(week()))
    yield double
    double.stop()


@pytest.fixture
def prices(tmp_path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    return str(tmp_path / "prices.yaml")


@pytest.fixture
def asked(prometheus, prices, capsys):
    def ask(*more, form="json"):
        period = ["--from", BEGIN.isoformat(), "--to", END.isoformat()]
        status = run(["usage", "--prometheus", prometheus.url, "--prices", prices, *period, "-o", form, *more])
        assert status == ExitCode.OK, capsys.readouterr().err
        text = capsys.readouterr().out
        if form != "json":
            return text
        document = json.loads(text)
        jsonschema.validate(document, schema_of(DocumentKind.USAGE_REPORT))
        return document

    return ask


def rows(document):
    return {row["name"]: row for row in document["rows"]}


def test_128_gpus_that_nobody_used_from_friday_to_monday_cost_23500_dollars(asked):
    document = asked("--by", "node")
    idle = [row for row in document["rows"] if row["name"].startswith("a100-")]
    assert len(idle) == 16
    assert sum(row["unclaimedHours"] for row in idle) == pytest.approx(128 * 60)
    assert sum(row["unclaimedCost"] for row in idle) == pytest.approx(23_500.80)
    assert document["total"]["unclaimedCost"] == pytest.approx(23_500.80)


def test_hours_and_costs_by_namespace_include_the_shortest_claims(asked):
    found = rows(asked())
    train = found["train"]
    assert (train["allocatedHours"], train["busyHours"], train["idleHours"]) == pytest.approx((13_824, 10_368, 3_456))
    assert (train["cost"], train["idleCost"]) == pytest.approx((42_301.44, 10_575.36))
    web = found["web"]  # four whole GPUs for 13 hours, half a GPU for the week
    assert (web["allocatedHours"], web["gpuHours"]) == pytest.approx((4 * 13 + 168, 4 * 13 + 84))
    assert web["cost"] == pytest.approx(4 * 13 * 4 + 84 * 4)
    assert found["lab"]["allocatedHours"] == pytest.approx(48 + 10 + 25)
    ci = found["ci"]
    assert (ci["allocatedHours"], ci["unmeasuredHours"], ci["cost"]) == pytest.approx((2, 2, 8))


@pytest.mark.parametrize(
    ("by", "name", "hours"),
    [
        ("claim", "train/job-3", 864), ("pod", "web/part-pod", 168), ("class", "gpu.nvidia.com", 13_824 + 220 + 83 + 2),
        ("pool", "mig-0/gpu.nvidia.com", 168), ("node", "h100-0", 52 + 48 + 10 + 25),
    ],
)  # fmt: skip
def test_hours_add_up_by_each_grouping(asked, by, name, hours):
    assert rows(asked("--by", by))[name]["allocatedHours"] == pytest.approx(hours)


def test_an_idle_claim_is_listed_with_its_devices_hours_and_cost(asked):
    (one,) = asked()["idleClaims"]
    assert (one["namespace"], one["name"], one["devices"], one["model"]) == ("web", "idle", 4, H100)
    assert (one["hours"], one["cost"]) == pytest.approx((13, 208))
    assert "web/idle: 13 h idle, 4 \u00d7 NVIDIA H100 80GB HBM3, 208.00 USD" in asked(form="table")


def test_a_claim_that_uses_little_gets_the_smallest_profile_that_is_large_enough(asked):
    sizes = {one["name"]: one for one in asked()["sizes"]}
    assert sizes["small"]["advice"] == "1g.10gb"
    assert sizes["small"]["gpusSaved"] == pytest.approx(6 / 7, abs=1e-5)
    assert sizes["small"]["savedPerHour"] == pytest.approx(4 * 6 / 7, abs=0.01)
    assert (sizes["short"]["advice"], sizes["short"]["reason"]) == (None, "no advice: less than 24 hours of data")
    assert (sizes["share"]["advice"], sizes["part"]["advice"]) == (None, None)
    assert sizes["part"]["reason"] == "its size is right"


@pytest.mark.parametrize(
    ("memory_gib", "p95", "profile"),
    [(5, 0.1, "1g.10gb"), (15, 0.1, "1g.20gb"), (15, 0.2, "2g.20gb"), (30, 0.1, "3g.40gb"), (30, 0.3, "3g.40gb"),
     (8.2, 0.1, "1g.20gb"), (60, 0.1, None), (5, 0.9, None)],
)  # fmt: skip
def test_the_advised_profile_has_a_fifth_more_memory_and_multiprocessors_than_were_used(memory_gib, p95, profile):
    claim = ClaimUsage("n", "c", "u", "gpu.nvidia.com", H100, "gpu", "p", 1e6, 1.0, 1e6, (), 1, memory_gib * GIB, p95)
    found, _ = size_for(claim)
    assert (found.name if found else None) == profile


def test_use_in_a_partition_counts_as_its_part_of_the_gpu():
    """The use of 0.2 is measured within the partition, so that a smaller profile is large enough."""
    claim = ClaimUsage("n", "c", "u", "mig", H100, "3g.40gb", "p", 1e6, 1.0, 1e6, (), 1, 5 * GIB, 0.2)
    assert size_for(claim)[0].name == "1g.10gb"
    assert [one.name for one in profiles_of(H100)][-1] == "gpu"


def test_claims_of_one_namespace_are_asked_for_by_name(asked, prometheus):
    document = asked("-n", "lab", "--by", "claim")
    assert rows(document).keys() == {"lab/small", "lab/short", "lab/share"}
    assert document["total"]["unclaimedHours"] == 0
    assert any('dra_claim_namespace="lab"' in query for query, _ in prometheus.asked)


def test_a_claim_that_lasts_longer_than_the_time_counts_only_within_it(prometheus, prices, capsys):
    day = ["--from", "2026-11-03T06:00Z", "--to", "2026-11-04T06:00Z"]
    run(["usage", "--prometheus", prometheus.url, "--prices", prices, *day, "--by", "claim", "-o", "json"])
    found = rows(json.loads(capsys.readouterr().out))
    assert found["train/job-0"]["allocatedHours"] == pytest.approx(8 * 24)
    assert found["lab/small"]["allocatedHours"] == pytest.approx(24)
    assert "web/idle" not in found


def test_counters_that_start_anew_with_a_new_agent_add_up(prometheus, asked):
    """The agent's pod was replaced after 50 hours: allocated hours go on, and measured hours start at zero."""
    moved = []
    for line in prometheus.lines:
        is_claims = line.labels.get("dra_claim_name") == "part" and line.name.startswith("dra_claim_")
        if not is_claims or not line.name.endswith("_seconds_total"):
            moved.append(line)
            continue
        kept = line.rate * 50 * 3600 if "allocated" in line.name else 0.0
        moved.append(Line(line.name, line.labels | {"instance": "old"}, rate=line.rate, last=50))
        moved.append(Line(line.name, line.labels | {"instance": "new"}, kept, line.rate, first=50))
    prometheus.lines = moved
    row = rows(asked("--by", "claim"))["web/part"]
    assert (row["allocatedHours"], row["busyHours"], row["unmeasuredHours"]) == pytest.approx((168, 84, 0))


def test_labels_that_prometheus_renamed_are_found(prometheus, asked):
    for line in prometheus.lines:
        for name in ("namespace", "pod"):
            if name in line.labels:
                line.labels[f"exported_{name}"] = line.labels.pop(name)
        line.labels["namespace"] = "dra-driver"
    assert rows(asked())["train"]["allocatedHours"] == pytest.approx(13_824)
    assert "web/part-pod" in rows(asked("--by", "pod"))


def test_the_token_is_sent_and_occurs_in_no_error(prometheus, tmp_path, capsys):
    (tmp_path / "token").write_text("very-secret\n")
    options = ["usage", "--prometheus", prometheus.url, "--token-file", str(tmp_path / "token")]
    assert run(options) == ExitCode.OK
    assert {headers["Authorization"] for _, headers in prometheus.asked} == {"Bearer very-secret"}
    prometheus.status, prometheus.answer = 401, b'{"status":"error"}'
    capsys.readouterr()
    assert run(options) == ExitCode.ENVIRONMENT
    error = capsys.readouterr().err
    assert "api.prometheus" in error
    assert "very-secret" not in error


VECTOR = {"status": "success", "data": {"resultType": "vector", "result": []}}


def with_row(metric, value):
    return {"status": "success", "data": {"resultType": "vector", "result": [{"metric": metric, "value": value}]}}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"<html>", b'{"status":"success"}', b"{" * 100_000, b"\xff\xfe",
        {**VECTOR, "status": "error"}, {"status": "success", "data": {"resultType": "matrix", "result": []}},
        with_row({"a": 1}, [0, "1"]), with_row([], [0, "1"]), with_row({}, [0, 1]), with_row({}, [0]),
        with_row({}, "1"),
        with_row({"a": "x" * 2000}, [0, "1"]), with_row({}, [0, "one"]),
        with_row({str(n): "" for n in range(99)}, [0, "1"]),
        b'{"status":"success","data":{"resultType":"vector","result":[' + b"1," * 4_300_000 + b"1]}}",
    ],
    ids=range(17),
)  # fmt: skip
def test_an_invalid_answer_is_a_short_error_with_a_code(prometheus, body, capsys):
    prometheus.answer = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert run(["usage", "--prometheus", prometheus.url]) == ExitCode.ENVIRONMENT
    error = capsys.readouterr().err
    assert re.search(r"\[api\.(prometheus|metrics)\]", error)
    assert len(error) < 1500


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5", "1e300"])
def test_invalid_values_of_counters_cause_no_error(prometheus, value, capsys):
    labels = {
        "dra_claim_uid": "u",
        "namespace": "<script>",
        "dra_claim_namespace": "<script>",
        "dra_claim_name": "=1+1",
    }
    prometheus.answer = json.dumps(with_row(labels, [0, value])).encode()
    for form in ("table", "json", "csv"):
        assert run(["usage", "--prometheus", prometheus.url, "--by", "claim", "-o", form]) == ExitCode.OK
        assert capsys.readouterr().out


def test_a_spreadsheet_has_a_row_for_each_name_and_no_formula(prometheus, asked):
    prometheus.lines.append(
        Line("dra_allocated_seconds_total", {"namespace": "=cmd()", "model": A100, "profile": "gpu"}, rate=1.0)
    )
    table = list(csv.DictReader(io.StringIO(asked(form="csv"))))
    assert {row["namespace"] for row in table} == {"train", "web", "lab", "ci", "'=cmd()", "total"}
    assert float(next(row for row in table if row["namespace"] == "train")["cost"]) == pytest.approx(42_301.44)


def test_a_model_without_a_price_is_named_and_has_hours_without_costs(prometheus, asked, tmp_path, capsys):
    (tmp_path / "prices.yaml").write_text('version: prices/v1\nprices: [{model: "NVIDIA H100*", perHour: "4"}]\n')
    document = asked()
    assert document["unpriced"] == [A100]
    assert rows(document)["train"]["cost"] is None
    assert document["currency"] == "USD"


@pytest.mark.parametrize(
    ("model", "profile", "node", "per_hour"),
    [
        (H100, "gpu", NodeKind("p5.48xlarge", "on-demand"), 6.0), (H100, "gpu", NodeKind("p5.48xlarge", "spot"), 2.5),
        (H100, "1g.10gb", NodeKind("p5.48xlarge", "spot"), 0.9),
        (H100, "3g.40gb", NodeKind("p5.48xlarge", "spot"), 1.25),
        (H100, "gpu", NodeKind(), 4.0), ("NVIDIA L4", "gpu", NodeKind(), 1.0),
    ],
)  # fmt: skip
def test_the_first_price_that_matches_model_profile_type_and_capacity_counts(tmp_path, model, profile, node, per_hour):
    (tmp_path / "p.yaml").write_text("""version: prices/v1
currency: EUR
prices:
  - {model: "NVIDIA H100*", profile: 1g.10gb, perHour: "0.90"}
  - {model: "NVIDIA H100*", instanceType: p5.48xlarge, capacity: spot, perHour: "2.5"}
  - {model: "NVIDIA H100*", instanceType: p5.48xlarge, perHour: 6}
  - {model: "NVIDIA H100*", perHour: "4"}
  - {model: "*", perHour: "1", source: whatever else there is}
""")
    table = read_prices(tmp_path / "p.yaml")
    part = {"gpu": 1.0, "3g.40gb": 0.5, "1g.10gb": 1 / 7}[profile]
    assert table.currency == "EUR"
    assert table.per_device_hour(model, profile, part, node) == pytest.approx(per_hour)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "version: prices/v2\nprices: [{model: a, perHour: 1}]", "version: prices/v1\nprices: []",
     "version: prices/v1\nprices: [{model: a}]", 'version: prices/v1\nprices: [{model: a, perHour: "-1"}]',
     'version: prices/v1\nprices: [{model: a, perHour: "1e9"}]',
     "version: prices/v1\nprices: [{model: a, perHour: true}]",
     "version: prices/v1\nprices: [{model: a, perHour: 1, colour: red}]", "version: prices/v1\nprices: 3",
     "version: prices/v1\ncurrency: dollars\nprices: [{model: a, perHour: 1}]",
     "version: prices/v1\nprices: [{model: a, perHour: 1, capacity: often}]"],
)  # fmt: skip
def test_a_price_table_with_mistakes_is_bad_input(prometheus, tmp_path, text, capsys):
    (tmp_path / "p.yaml").write_text(text)
    assert run(["usage", "--prometheus", prometheus.url, "--prices", str(tmp_path / "p.yaml")]) == ExitCode.BAD_INPUT
    assert "[input." in capsys.readouterr().err


def test_the_shipped_sample_is_a_price_table_with_sources():
    table = read_prices(Path(__file__).parents[3] / "examples" / "usage" / "prices.yaml")
    assert all(row.source for row in table.rows)
    assert table.per_device_hour(A100, "gpu", 1.0, NodeKind()) > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--prometheus", "prometheus:9090"], "usage.prometheus"), (["--prometheus", "ftp://x"], "usage.prometheus"),
        (["--prometheus", "http://"], "usage.prometheus"), (["--prometheus", "http://x:99999"], "usage.prometheus"),
        (["--prometheus", "http://x", "--since", "1 week"], "usage.period"),
        (["--prometheus", "http://x", "--since", "999999w"], "usage.period"),
        (["--prometheus", "http://x", "--from", "yesterday"], "usage.period"),
        (["--prometheus", "http://x", "--from", "2026-11-02", "--to", "2026-11-01"], "usage.period"),
        (["--from", "2026-11-02"], "usage.period"),
    ],
)  # fmt: skip
def test_an_invalid_address_or_period_is_a_usage_error(arguments, code, capsys):
    assert run(["usage", *arguments]) == ExitCode.USAGE
    assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv"])
def test_names_of_a_hostile_prometheus_give_no_orders_to_a_terminal(capsys, form):
    labels = {"namespace": "a\u202eb\x9bc", "device_class": "gpu.nvidia.com", "model": H100, "profile": "gpu"}
    double = PrometheusDouble([Line("dra_allocated_seconds_total", labels, rate=1)])
    try:
        period = ["--from", BEGIN.isoformat(), "--to", END.isoformat(), "--by", "namespace"]
        assert run(["usage", "--prometheus", double.url, *period, "-o", form]) == ExitCode.OK
    finally:
        double.stop()
    shown = "".join(capsys.readouterr())
    assert not {"\u202e", "\x9b"} & set(shown)
    assert any(one in shown for one in ("a\\u202eb\\u009bc", "a\\u202eb\\x9Bc", "a\ufffdb\ufffdc"))
