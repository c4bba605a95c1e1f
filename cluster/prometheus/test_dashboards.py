"""Every query of every dashboard, and of every rule, has data in a real Prometheus that holds a week of a fleet."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.components.parts import BinariesMissing
from cluster.components.programs import prometheus
from cluster.prometheus.server import PrometheusServer
from cluster.prometheus.week import WEEK_S, text
from tests.support.metering.promql import metrics_of

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "dashboards").glob("*.json"))
BEGAN = 1_760_000_000 // 7200 * 7200
END = BEGAN + WEEK_S


def queries(file: Path) -> Iterator[tuple[str, str]]:
    for panel in json.loads(file.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def filled(expression: str) -> str:
    """Return a query as Grafana sends it, with all values chosen."""
    expression = expression.replace("$__rate_interval", "10m").replace("$__range", "1d")
    return re.sub(r"\$\w+", ".*", expression)


QUERIES = [(file.stem, *query) for file in DASHBOARDS for query in queries(file)]
RECORDED = yaml.safe_load((DEPLOY / "rules" / "cost.rules.yaml").read_text())["groups"][0]["rules"]


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[PrometheusServer]:
    try:
        programs = prometheus()
    except BinariesMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("prometheus")
    asked = {name for _, _, expression in QUERIES for name in metrics_of(filled(expression))}
    asked |= {name for rule in RECORDED for name in metrics_of(rule["expr"])}
    with (folder / "week.txt").open("w") as file:
        file.writelines(text((name for name in asked if ":" not in name), BEGAN))
    blocks = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=168h"]
    subprocess.run([*blocks, folder / "week.txt", folder / "data"], check=True, capture_output=True, timeout=300)
    (folder / "week.txt").unlink()
    one = PrometheusServer(programs["prometheus"], folder)
    for file in (DEPLOY / "rules" / "prices.rules.yaml", DEPLOY / "rules" / "cost.rules.yaml"):
        for _ in range(3):  # a rule can read the series of an earlier rule only once these are in a block
            _backfill(programs["promtool"], one, folder, file)
            one.stop()
            one = PrometheusServer(programs["prometheus"], folder)
    yield one
    one.stop()


def _backfill(promtool: Path, server: PrometheusServer, folder: Path, rules: Path) -> None:
    command = [promtool, "tsdb", "create-blocks-from", "rules", f"--url={server.url}", f"--start={END - 86400}"]
    command += [f"--end={END}", "--eval-interval=5m", f"--output-dir={folder}/data", rules]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


@pytest.mark.parametrize(("dashboard", "title", "expression"), QUERIES, ids=[f"{d}: {t}" for d, t, _ in QUERIES])
def test_a_panel_of_a_dashboard_has_data(server, dashboard, title, expression):
    found = server.ask(filled(expression), END)
    assert found, filled(expression)
    assert all(math.isfinite(float(one["value"][1])) for one in found)


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule["record"])
def test_a_recording_rule_has_values(server, rule):
    assert server.ask(rule["expr"], END)
