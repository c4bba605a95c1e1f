"""The rules of deploy/rules: their metrics exist, and each alert is on the page. Their effect: cluster/prometheus."""

import json
import re

import pytest

from dra_driver.node.health.faults import FaultKey
from tests.deploy.support.exported_metrics import exported_metrics
from tests.deploy.support.rules import ALL, RECORDED, RULES, rules
from tests.support.chart import ROOT, objects, render
from tests.support.metering.promql import metrics_of

PAGE = ROOT / "docs" / "telemetry.md"


ALERTS = [rule for rule in ALL if "alert" in rule]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("a_total > 1", {"a_total"}),
        ('sum by (x, y) (rate(a_total{z="b or c"}[5m])) / on (q) group_left () max(b)', {"a_total", "b"}),
        ("a:b:sum unless a offset 10m and count_over_time(c[1d:5m]) > 1e3", {"a:b:sum", "a", "c"}),
        ("histogram_quantile(0.95, sum by (le) (rate(h_bucket[$__range])))", {"h_bucket"}),
    ],
)
def test_metrics_of_an_expression_are_found(expression, names):
    assert metrics_of(expression) == names


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_queries_only_metrics_that_exist(rule):
    assert metrics_of(rule["expr"]) <= exported_metrics() | RECORDED


def test_every_alert_has_a_section_of_the_page_and_links_to_it():
    sections = re.findall(r"^### (\w+)$", PAGE.read_text().partition("\n## Alerts\n")[2], re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in ALERTS)
    for rule in ALERTS:
        assert rule["annotations"]["runbook_url"] == f"docs/telemetry.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description"} < rule["annotations"].keys()


def test_no_alert_names_an_address_where_the_node_is_known():
    """A scrape through Kubernetes gives its samples the label `node`; other scrapes have only `instance`."""
    assert not [rule["alert"] for rule in ALERTS if "{{ $labels.instance }}" in rule["annotations"]["summary"]]


def test_every_kind_of_fault_has_one_alert():
    asked = [re.findall(r'key(=~?|!~)"([^"]+)"', rule["expr"]) for rule in ALERTS]
    for key in FaultKey:
        raised = [
            found for found in asked if any((how != "!~") == bool(re.fullmatch(keys, key)) for how, keys in found)
        ]
        assert len(raised) == (0 if key == FaultKey.PCIE else 1), key  # replays of PCIe are only shown in a graph


def test_the_chart_makes_a_prometheus_rule_of_the_same_rules(helm):
    values = ("rules.enabled=true", "rules.runbookUrl=https://runbooks.example.com/gpus", "rules.labels.release=main")
    found = [one for one in objects(render(helm, *values)) if one["kind"] == "PrometheusRule"]
    assert [one["metadata"]["labels"]["release"] for one in found] == ["main"]
    made = {
        rule.get("alert") or rule["record"]: rule for group in found[0]["spec"]["groups"] for rule in group["rules"]
    }
    prices = {rule["record"] for rule in rules(RULES / "prices.rules.yaml")}
    assert made.keys() == {rule.get("alert") or rule["record"] for rule in ALL} - prices
    for rule in ALERTS:
        assert made[rule["alert"]]["expr"] == rule["expr"]
        link = made[rule["alert"]]["annotations"]["runbook_url"]
        assert link == f"https://runbooks.example.com/gpus#{rule['alert'].lower()}"
    assert not [one for one in objects(render(helm)) if one["kind"] == "PrometheusRule"]


def test_prices_in_the_charts_values_become_rules_and_the_classic_alerts_can_be_left_out(helm, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"rules": {"prices": {"NVIDIA A100-SXM4-80GB": 1.56}}}))
    text = render(helm, "rules.enabled=true", "rules.classic=false", values_file=values)
    (found,) = (one for one in objects(text) if one["kind"] == "PrometheusRule")
    groups = {group["name"]: group["rules"] for group in found["spec"]["groups"]}
    assert "dra-driver.classic" not in groups
    (priced,) = groups["dra-driver.prices"]
    assert (priced["expr"], priced["labels"]) == ("vector(1.56)", {"model": "NVIDIA A100-SXM4-80GB"})
