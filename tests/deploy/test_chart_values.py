"""The chart's values: which are refused, and how the schema, the page and the agent agree on them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jsonschema
import pytest
import yaml

from dra_driver.base.flags import FLAGS
from tests.support.chart import CASES, CHART, OURS, PLUGINS, ROOT, objects, render

MONITORING = "monitoring.coreos.com/v1/"


@pytest.mark.parametrize(
    ("values", "kind"),
    [("rules.enabled=true", "PrometheusRule"), ("metrics.serviceMonitor.enabled=true", "ServiceMonitor")],
)
def test_what_needs_the_prometheus_operator_is_refused_in_a_cluster_without_its_kinds(
    helm: str, values: str, kind: str
) -> None:
    served = ["--api-versions", "apiregistration.k8s.io/v1"]
    for more, is_refused in (([], False), (served, True), ([*served, "--api-versions", MONITORING + kind], False)):
        command = [helm, "template", "x", str(CHART), "--set", values, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert bool(done.returncode) is is_refused, done.stderr
        assert (f"{values} needs the kind {kind} of the Prometheus Operator" in done.stderr) is is_refused


@pytest.mark.parametrize(
    "wrong",
    [
        "agent.colour=red",
        "agent.mig.mode=often",
        "mps.enabled=perhaps",
        "agent.hardware=TPU",
        "image.digest=sha256:12",
        "agent.metricsPort=70000",
        "metrics.readers=everybody",
        "networkPolicy.metricsFrom[0].namespace=monitoring",
        "driverName=Not_A_Name",
        "deviceClasses.extendedResources.migProfiles={big}",
        "agent.kubeletDir=relative",
        "webhook.failurePolicy=Perhaps",
        "webhook.callers.networks={everywhere}",
        "agent.kubeletDir=/var/lib: x",
        "driverManager.label=two words",
        "agent.mig=null",
        "agent.hardware=null",
        "driverName=null",
        "image.repository=null",
        "webhook.callers=null",
        "mps.tenants=nobody",
        "mps.namespaces={Team A}",
        "agent.resources.limits.memory=lots",
        "agent.resources.limit=1Gi",
        "agent.tolerations[0].operator=Sometimes",
        "agent.tolerations[0].keys=nvidia.com/gpu",
        "agent.affinity.nodeAfinity=y",
        "agent.extraEnv[0].valeu=x",
        "agent.extraVolumeMounts[0].mountpath=/x",
        "webhook.certManager.issuerRef.nam=x",
        "webhook.resources.requests.cpu=true",
        "deviceClasses.examples=some",
        "sharing.config.rule=4",
        "sharing.config.version=rules/v2",
        "health.validate=often",
    ],
)
def test_an_invalid_value_is_refused_by_name(helm: str, wrong: str) -> None:
    command = [helm, "template", "x", str(CHART), "--set", wrong]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "schema" in done.stderr or "values" in done.stderr
    name = wrong.partition("=")[0].split(".")[-1]
    assert name in done.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["agent.runtimeClassName=nvidia", "mps.enabled=true"], "no MPS daemon can be kept"),
        (
            ["agent.runtimeClassName=nvidia", *OURS, "sharing.config.rules[0].sharing.strategy=MPS"],
            "no MPS daemon can be kept",
        ),
        (["agent.runtimeClassName=nvidia", "remediation.mode=on"], "can't reset a GPU"),
        (["health.enabled=false", "remediation.mode=dry-run"], "acts on faults"),
        (["agent.runtimeClassName=nvidia", "agent.mig.mode=dynamic"], "no GPU can be partitioned on demand"),
        (["agent.runtimeClassName=nvidia", "agent.mig.geometry=all-balanced"], "no GPU can be partitioned"),
        ([*OURS, "sharing.configMap=mine"], "leave one empty"),
        (["metrics.serviceMonitor.enabled=true", "metrics.service=false"], "finds agents by the Service"),
        (["metrics.serviceMonitor.enabled=true", "agent.metricsPort=0"], "finds agents by the Service"),
        (["metrics.readers=authorized"], "in the clear"),
        (["metrics.tls.secret=mine", "agent.healthPort=0"], "a port of their own"),
        (["metrics.tls.secret=mine", "metrics.tls.issuerRef.name=x"], "leave one empty"),
        (["agent.metricsPort=9401"], "are the same"),
        (["deviceClasses.extendedResources.enabled=true", "deviceClasses.create=false"], "makes none"),
        (["mps.tenants=namespace", "sharing.configMap=mine"], "Name the namespaces in mps.namespaces"),
        (["mps.tenants=namespace", *PLUGINS], "cannot name namespaces"),
        (["mps.tenants=namespace", *OURS, "sharing.config.rules[0].sharing.strategy=MPS"], "names no namespaces"),
        (
            [
                "mps.tenants=namespace",
                *OURS,
                "sharing.config.rules[0].acrossNamespaces=true",
                "sharing.config.rules[0].namespaces={a}",
            ],
            "choose one",
        ),
        ([*OURS, "sharing.config.rules[0].namespaces={a}"], "need mps.tenants=namespace"),
        (["deviceClasses.extendedResources.migProfiles={1g.10gb}"], "enabled=true"),
    ],
)
def test_values_that_exclude_each_other_are_refused_with_what_to_do(helm: str, values: list[str], said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, *values)
    assert said in refused.value.stderr
    assert all(".".join(value.split("=")[0].split(".")[:2]) in refused.value.stderr for value in values)


def test_values_of_an_earlier_release_still_render(helm: str) -> None:
    """`helm upgrade --reuse-values` uses the defaults of the earlier chart."""
    agent = next(o for o in objects(render(helm, "takeover=null", "rollout=null")) if o["kind"] == "DaemonSet")
    assert agent["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": "1%", "maxUnavailable": 0}


def test_a_label_or_node_label_that_the_chart_sets_itself_is_not_written_twice(helm: str) -> None:
    name, os = r"app\.kubernetes\.io/name=mine", r"kubernetes\.io/os=linux"
    values = [f"agent.podLabels.{name}", "agent.podLabels.team=a", f"agent.nodeSelector.{os}", "mps.enabled=true"]
    text = render(helm, *values, f"mps.nodeSelector.{os}", "mps.nodeSelector.fast=x", "driverManager.enabled=true")
    agent, mps = (content for content in objects(text) if content["kind"] == "DaemonSet")
    manager = {"kubernetes.io/os": "linux", "nvidia.com/gpu.deploy.dra-driver": "true"}
    assert agent["spec"]["template"]["spec"]["nodeSelector"] == manager
    assert mps["spec"]["template"]["spec"]["nodeSelector"] == manager | {"fast": "x"}
    labels = agent["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= (agent["spec"]["selector"]["matchLabels"] | {"team": "a"}).items()
    for name in ("kubernetes.io/os", "app.kubernetes.io/name"):
        assert not re.search(rf"^( +){re.escape(name)}: .*\n(\1\S.*\n)*\1{re.escape(name)}:", text, re.MULTILINE)


def test_every_environment_variable_of_the_daemonset_is_one_of_the_agents_flags(helm: str) -> None:
    known = {flag.variable: flag for flag in FLAGS}
    runtime = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    for case in CASES.values():
        for content in objects(render(helm, *case)):
            if content["kind"] == "DaemonSet":
                (container,) = content["spec"]["template"]["spec"]["containers"]
                if container["args"] != ["agent"]:
                    continue
                given = {entry["name"]: entry.get("value", "") for entry in container["env"]}
                assert given.keys() - runtime <= known.keys()
                for name in given.keys() - runtime:
                    assert not known[name].choices or given[name] in known[name].choices


@pytest.mark.parametrize("name", ["agent.resources", "agent.tolerations", "sharing.config", "passthrough.config"])
def test_a_default_is_removed_by_null(helm: str, name: str) -> None:
    assert objects(render(helm, f"{name}=null"))


def test_the_commands_of_the_pages_set_values_of_the_right_type() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    commands = re.findall(
        r"helm [^\n`]*(?:deploy/helm|dra-driver \.\.\.)[^\n`]*",
        "\n".join(
            page.read_text().replace("\\\n", " ") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        ),
    )
    given = [found for command in commands for found in re.findall(r"--set(-file)? '?([\w.]+)=(\S*)", command)]
    assert given
    for is_file, name, text in given:
        values: dict = {}
        at = values
        for step in name.split(".")[:-1]:
            at = at.setdefault(step, {})
        at[name.split(".")[-1]] = "text" if is_file else yaml.safe_load(text.strip("'").replace("\\,", ","))
        faults = jsonschema.Draft7Validator(schema).iter_errors(values)
        assert not [fault.message for fault in faults if fault.validator != "required"], (name, text)


def test_the_default_values_pass_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_values_and_the_schema_have_the_same_names() -> None:
    def paths(tree: dict, prefix: str = "") -> set[str]:
        inner = (paths(value, f"{prefix}{key}.") for key, value in tree.items() if isinstance(value, dict) and value)
        return set().union(*inner, {f"{prefix}{key}" for key in tree})

    def described(schema: dict, prefix: str = "") -> set[str]:
        known = schema.get("properties", {})
        return set().union(*(described(s, f"{prefix}{k}.") for k, s in known.items()), {prefix + k for k in known})

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = {"agent.resources.", "mps.resources.", "webhook.resources.", "console.resources.", "dashboards.labels."}
    written = {path for path in paths(values) if not any(path.startswith(start) for start in free)}
    schema = {path for path in described(json.loads((CHART / "values.schema.json").read_text())) if "[]" not in path}
    assert written == {path for path in schema if not path.startswith(("global", "imagePullSecrets."))}


def test_every_value_is_described_and_in_the_table_of_the_page() -> None:
    def bare(schema: dict, prefix: str = "") -> list[str]:
        known = schema.get("properties", {})
        inner = [name for key, value in known.items() for name in bare(value, f"{prefix}{key}.")]
        return [*(prefix + key for key, value in known.items() if not value.get("description")), *inner]

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert [name for name in bare(schema) if not name.startswith("imagePullSecrets")] == []
    command = [sys.executable, str(ROOT / "deploy" / "values_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("level", "limit"), [("0", "256Mi"), ("none", "256Mi"), ("1", "768Mi"), ("/usr/bin/diag", "768Mi")]
)
def test_the_memory_limit_of_the_agent_is_larger_with_tests_of_devices(helm: str, level: str, limit: str) -> None:
    for more in ((), ("agent.runtimeClassName=nvidia",)):
        found = objects(render(helm, f"health.validate={level}", *more))
        (agent,) = (one["spec"]["template"]["spec"]["containers"][0] for one in found if one["kind"] == "DaemonSet")
        variables = {one["name"]: one.get("value") for one in agent["env"]}
        assert variables.get("VALIDATE", "0") == level
        assert agent["resources"]["limits"]["memory"] == limit
        wanted = "compute,utility" if limit == "768Mi" else "utility"
        assert variables.get("NVIDIA_DRIVER_CAPABILITIES", wanted) == wanted
    own = objects(render(helm, "health.validate=1", "agent.resources.limits.memory=2Gi"))
    (agent,) = (one["spec"]["template"]["spec"]["containers"][0] for one in own if one["kind"] == "DaemonSet")
    assert agent["resources"]["limits"]["memory"] == "2Gi"
