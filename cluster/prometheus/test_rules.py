"""Every alert fires, stays quiet and ends as its cases say; promtool, of the pinned Prometheus, is the judge."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.components.parts import BinariesMissing
from cluster.components.programs import prometheus
from cluster.prometheus.alerts import AlertCase, cases

RULES = Path(__file__).parents[2] / "deploy" / "rules"
FILES = sorted(RULES.glob("*.rules.yaml"))
CASES = tuple(cases())


@pytest.fixture(scope="session")
def promtool() -> Path:
    try:
        return prometheus()["promtool"]
    except BinariesMissing as missing:
        pytest.skip(str(missing))


def run(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run([promtool, *arguments], check=False, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def document(case: AlertCase) -> dict:
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    times = sorted({*case.fires, *case.quiet})
    tests = [{"eval_time": f"{at}m", "alertname": case.alert, "exp_alerts": []} for at in times]
    return {
        "rule_files": [str(file) for file in FILES],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": tests}],
    }


def fired(promtool: Path, case: AlertCase, folder: Path) -> dict[int, str]:
    """Return each time at which the alert fired according to promtool, with its labels."""
    file = folder / "case.json"
    file.write_text(json.dumps(document(case)))
    done = subprocess.run([promtool, "test", "rules", file], check=False, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert "SUCCESS" in said or "FAILED" in said, said
    found = re.findall(
        r"alertname: \w+, time: ([\ddhms]+),\s+exp:\[\s*\],?\s+got:(.*?)(?=\n\s*alertname:|\Z)", said, re.DOTALL
    )
    assert done.returncode == 0 or found, said
    return {_minutes(time): text for time, text in found}


def _minutes(text: str) -> int:
    amounts = {unit: int(number) for number, unit in re.findall(r"(\d+)([dhms])", text)}
    return amounts.get("d", 0) * 1440 + amounts.get("h", 0) * 60 + amounts.get("m", 0)


def test_the_rules_are_valid(promtool):
    said = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *FILES)
    assert said.count("SUCCESS") == len(FILES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_when_it_should_and_only_then(promtool, case, tmp_path):
    found = fired(promtool, case, tmp_path)
    assert sorted(found) == sorted(case.fires)
    for text in found.values():
        for name, value in case.labels.items():
            assert f'{name}="{value}"' in text


def ends(case: AlertCase) -> bool:
    return bool(case.fires) and min(case.quiet) < min(case.fires) and max(case.fires) < max(case.quiet)


def test_every_alert_has_a_case_in_which_it_begins_and_ends():
    groups = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
    known = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert {case.alert for case in CASES if ends(case)} == known


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
TEAM = f'device_class="gpu.nvidia.com",model="{H100}",namespace="team",profile="gpu"'
WEB = f'device_class="gpu.nvidia.com",model="{H100}",namespace="web",profile="3g.40gb"'
POOL = f'dra_pool_name="b/gpu.nvidia.com",model="{A100}"'
# Two GPUs of one namespace, one of them busy for a quarter; a partition of another; three GPUs that no claim holds.
USED = {
    f'dra_allocated_seconds_total{{{TEAM},instance="a"}}': "0+60x60",
    f'dra_allocated_seconds_total{{{TEAM},instance="b"}}': "0+60x60",
    f'dra_measured_seconds_total{{{TEAM},instance="a"}}': "0+60x60",
    f'dra_measured_seconds_total{{{TEAM},instance="b"}}': "0+60x60",
    f'dra_busy_seconds_total{{{TEAM},instance="a"}}': "0+60x60",
    f'dra_busy_seconds_total{{{TEAM},instance="b"}}': "0+15x60",
    f'dra_allocated_seconds_total{{{WEB},instance="a"}}': "0+60x60",
    f'dra_gpu_part{{model="{H100}",profile="gpu",instance="a"}}': "1x60",
    f'dra_gpu_part{{model="{H100}",profile="gpu",instance="b"}}': "1x60",
    f'dra_gpu_part{{model="{H100}",profile="3g.40gb",instance="a"}}': "0.5x60",
    f'dra_unclaimed_seconds_total{{{POOL},instance="b"}}': "0+180x60",
}
RECORDED = {
    "dra:allocated_gpus:sum": {TEAM: 2, WEB: 0.5},
    "dra:busy_gpus:sum": {TEAM: 1.25},
    "dra:idle_gpus:sum": {TEAM: 0.75},
    "dra:unclaimed_gpus:sum": {POOL: 3},
    "dra:allocated_cost_per_hour:sum": {TEAM: 5.38, WEB: 1.345},
    "dra:idle_cost_per_hour:sum": {TEAM: 2.0175},
    "dra:unclaimed_cost_per_hour:sum": {POOL: 4.68},
}


def test_recorded_costs_count_each_gpu_and_each_partition_once(promtool, tmp_path):
    expected = [
        {
            "expr": record,
            "eval_time": "30m",
            "exp_samples": [{"labels": f"{record}{{{labels}}}", "value": value} for labels, value in found.items()],
        }
        for record, found in RECORDED.items()
    ]
    series = [{"series": name, "values": values} for name, values in USED.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    rules = {"rule_files": [str(file) for file in FILES], "evaluation_interval": "1m", "fuzzy_compare": True}
    (tmp_path / "cost.json").write_text(json.dumps({**rules, "tests": [test]}))
    assert "SUCCESS" in run(promtool, "test", "rules", tmp_path / "cost.json")
