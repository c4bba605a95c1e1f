"""The dashboards: they are generated from their table, query metrics that exist, and are in the chart."""

import json
import re
import subprocess
import sys

import pytest

from tests.deploy.support.exported_metrics import exported_metrics
from tests.deploy.support.rules import RECORDED
from tests.support.chart import ROOT, objects, render
from tests.support.metering.promql import metrics_of

FOLDER = ROOT / "deploy" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))


def test_the_files_equal_what_is_generated_from_the_table():
    done = subprocess.run(
        [sys.executable, FOLDER / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [file.stem for file in FILES] == ["amd", "claims", "cost", "fleet", "health", "intel", "node"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_queries_only_metrics_and_variables_that_exist(file):
    document = json.loads(file.read_text())
    variables = {one["name"]: one for one in document["templating"]["list"]}
    expressions = [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]
    for expression in expressions:
        used = set(re.findall(r"\$(\w+)", expression))
        assert used <= {*variables, "__rate_interval", "__range"}
        assert metrics_of(re.sub(r"\$\w+", "x", re.sub(r"\$__\w+", "5m", expression))) <= exported_metrics() | RECORDED
    for name, one in variables.items():
        if name != "datasource":
            assert re.match(r"label_values\((\w+)", one["definition"])[1] in exported_metrics()
            assert any(
                f"${name}" in text for text in [*expressions, *(v.get("definition", "") for v in variables.values())]
            )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_have_ids_of_their_own_and_do_not_overlap(file):
    panels = json.loads(file.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_the_chart_installs_each_dashboard_with_the_label_for_the_sidecar(helm):
    values = ("dashboards.enabled=true", "dashboards.namespace=monitoring")
    found = [
        one
        for one in objects(render(helm, *values))
        if one["kind"] == "ConfigMap" and "dashboard" in str(one["metadata"])
    ]
    assert sorted(name for one in found for name in one["data"]) == [file.name for file in FILES]
    for one in found:
        assert one["metadata"]["namespace"] == "monitoring"
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = one["data"].items()
        assert json.loads(text) == json.loads((FOLDER / name).read_text())
