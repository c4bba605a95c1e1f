"""Dashboards and rules that others made for NVIDIA's exporter show data from an agent that a real Prometheus scrapes.

They are not part of this repository: `DASHBOARDS_OF_OTHERS` names a folder of them. Without it the test is skipped.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.components.parts import BinariesMissing
from cluster.components.programs import prometheus
from cluster.prometheus.other_queries import Asked, queries_of
from cluster.prometheus.server import PrometheusServer
from dra_driver.hardware.metered import Measure
from dra_driver.hardware.nvidia.dcgm_names import NAMES
from tests.support.agents.agent_process import stage
from tests.support.metering.metered_node import MeteredNode
from tests.support.metering.promql import metrics_of

FOLDER = Path(os.environ["DASHBOARDS_OF_OTHERS"]) if os.environ.get("DASHBOARDS_OF_OTHERS") else None
OURS = {one.head.name for one in NAMES}
PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
SCRAPED_S = 75  # so that a minute's ranges are full
CONFIGURATION = """
global: {{scrape_interval: 3s}}
scrape_configs:
  - job_name: dra-driver
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{node: node-1, instance: "node-1:9400"}}}}]
    relabel_configs: {relabelings}
    metric_relabel_configs: {metric_relabelings}
"""

pytestmark = pytest.mark.skipif(FOLDER is None, reason="DASHBOARDS_OF_OTHERS names no folder of dashboards")


def _lay_out(folder: Path) -> None:
    """Write a profile of two whole GPUs and one with partitions, which measures all that a counters file can select."""
    everything = {one: "0.7" if one.endswith("Ratio") else 7 for one in Measure}
    parts = {"mig": [{"profile": "3g.40gb", "start": start} for start in (0, 4)]}
    gpus = [{"pci": f"0000:0{index}:00.0", "metering": everything} for index in (1, 2)]
    document = {
        "about": "three GPUs", "driverVersion": "580.126.20", "gpuDefaults": {"model": "h100-sxm5-80gb"},
        "gpus": [*gpus, {"pci": "0000:03:00.0", "metering": {**everything, "instance": everything}, **parts}],
    }  # fmt: skip
    (folder / "profile.yaml").write_text(json.dumps(document))
    (folder / "all.csv").write_text("".join(f"{one.head.name}, {one.head.kind}, x\n" for one in NAMES))


def _configuration(port: int) -> str:
    """Return the configuration of a Prometheus that scrapes as the page configures the ServiceMonitor."""
    block = next(one for one in PAGE.split("```yaml\n")[1:] if one.startswith("metrics:")).partition("```")[0]
    monitor = yaml.safe_load(block)["metrics"]["serviceMonitor"]
    snake = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    lists = {
        kind: json.dumps([{snake.get(key, key): value for key, value in one.items()} for one in monitor[kind]])
        for kind in ("relabelings", "metricRelabelings")
    }
    return CONFIGURATION.format(
        port=port, relabelings=lists["relabelings"], metric_relabelings=lists["metricRelabelings"]
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PrometheusServer]:
    try:
        programs = prometheus()
    except BinariesMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("others")
    with stage("1.35") as here:
        node = MeteredNode(here, folder)
        _lay_out(folder)
        node.start("--telemetry=full", "--mig=static", f"--telemetry-counters={folder}/all.csv")
        node.until(lambda: node.scrape("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), "readings")
        node.until(lambda: len(here.devices()) == 4, "devices")
        devices = here.devices()
        node.run("web-0", "whole", next(one for one in devices if "mig" not in one and "3g" not in one))
        node.run("web-1", "part", next(one for one in devices if "3g" in one))
        one = PrometheusServer(programs["prometheus"], folder, _configuration(node.port))
        time.sleep(SCRAPED_S)
        yield one
        one.stop()


def _answer(server: PrometheusServer, asked: Asked) -> str:
    missing = sorted(metrics_of(asked.expression) - OURS)
    try:
        found = server.ask(asked.expression, time.time())
    except urllib.error.HTTPError as refusal:
        return f"refused: {refusal.read()[:200]!r}"
    if found:
        return "data"
    return f"needs {', '.join(missing)}" if missing else "no data"


def test_the_queries_of_others_have_data(server):
    asked = list(dict.fromkeys(queries_of(FOLDER, server.label_values)))
    assert asked, f"no query below {FOLDER}"
    answers = {one: _answer(server, one) for one in asked}
    for one, answer in answers.items():
        print(f"{answer:10} | {one.file} | {one.title} | {' '.join(one.expression.split())}")
    assert not [one for one, answer in answers.items() if answer == "no data" or answer.startswith("refused")]
