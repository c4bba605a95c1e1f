"""`dra-driver usage` on a real Prometheus that has scraped the week whose hours and money are worked out by hand."""

from __future__ import annotations

import json
import subprocess

import pytest

from cluster.components.parts import BinariesMissing
from cluster.components.programs import prometheus
from cluster.prometheus.server import PrometheusServer
from dra_driver.tools.main import run
from tests.support.metering.usage_week import BEGIN, END, PRICES, WEEK_H, week

STEP_S = 60


def samples():
    """Yield what a scrape every minute would have brought, in the format that the tool that makes blocks reads."""
    lines = sorted(week(), key=lambda line: line.name)
    for at, line in enumerate(lines):
        if at == 0 or lines[at - 1].name != line.name:
            yield f"# TYPE {line.name} unknown\n"
        labels = ",".join(f'{name}="{value}"' for name, value in line.labels.items())
        for minute in range(WEEK_H * 60 + 1):
            value = line.at(minute / 60)
            if value is not None:
                yield f"{line.name}{{{labels}}} {value:.3f} {int(BEGIN.timestamp()) + minute * STEP_S}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    try:
        programs = prometheus()
    except BinariesMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("usage")
    with (folder / "week.txt").open("w") as file:
        file.writelines(samples())
    blocks = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=168h"]
    subprocess.run([*blocks, folder / "week.txt", folder / "data"], check=True, capture_output=True, timeout=300)
    (folder / "week.txt").unlink()
    one = PrometheusServer(programs["prometheus"], folder)
    yield one
    one.stop()


@pytest.fixture
def asked(server, tmp_path, capsys):
    (tmp_path / "prices.yaml").write_text(PRICES)

    def ask(*more):
        period = ["--from", BEGIN.isoformat(), "--to", END.isoformat(), "--prices", str(tmp_path / "prices.yaml")]
        assert run(["usage", "--prometheus", server.url, *period, "-o", "json", *more]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return ask


def test_the_cost_of_a_weekend_without_claims_is_that_worked_out_by_hand(asked):
    document = asked("--by", "node")
    idle = [row for row in document["rows"] if row["name"].startswith("a100-")]
    assert sum(row["unclaimedHours"] for row in idle) == pytest.approx(128 * 60, rel=0.01)
    assert sum(row["unclaimedCost"] for row in idle) == pytest.approx(23_500.80, rel=0.01)


def test_hours_and_money_are_those_worked_out_by_hand(asked):
    found = {row["name"]: row for row in asked()["rows"]}
    assert found["train"]["allocatedHours"] == pytest.approx(13_824, rel=0.01)
    assert found["train"]["busyHours"] == pytest.approx(10_368, rel=0.01)
    assert found["train"]["cost"] == pytest.approx(42_301.44, rel=0.01)
    assert found["web"]["gpuHours"] == pytest.approx(52 + 84, rel=0.01)
    assert found["lab"]["allocatedHours"] == pytest.approx(83, rel=0.01)


def test_claims_count_to_the_minute_and_advice_is_that_worked_out_by_hand(asked):
    document = asked("--by", "claim")
    found = {row["name"]: row for row in document["rows"]}
    assert found["train/job-0"]["allocatedHours"] == pytest.approx(8 * 108, abs=0.2)
    assert found["web/part"]["busyHours"] == pytest.approx(84, abs=0.1)
    (idle,) = document["idleClaims"]
    assert (idle["name"], idle["devices"]) == ("idle", 4)
    assert (idle["hours"], idle["cost"]) == pytest.approx((13, 208), rel=0.01)
    assert {one["name"]: one["advice"] for one in document["sizes"] if one["advice"]} == {"small": "1g.10gb"}
