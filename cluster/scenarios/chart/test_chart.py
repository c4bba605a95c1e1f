"""The chart, installed: the agent as its DaemonSet's pod, from the built image, under its own ServiceAccount."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from cluster import workload
from cluster.api import Refused
from cluster.chart import CHART, NAMESPACE, Chart
from cluster.chart_use import check_running, nothing_is_left, opens_character_devices, use_one_gpu
from cluster.cluster import REPOSITORY
from cluster.drivers import device_plugin
from cluster.sandbox import until
from cluster.stage import Stage
from tests.support.chart import CASES


def test_from_install_to_running_pods_through_an_upgrade_to_nothing_left(chart: Chart, stage: Stage) -> None:
    node, cluster = stage.node, chart.cluster
    notes = chart.install(node)
    assert "rollout status" in notes
    (first,) = chart.pods()
    assert first["spec"]["containers"][0]["securityContext"]["privileged"] is True
    assert len(chart.published(node)) > 6

    names = [f"user-{number}" for number in range(3)]
    use_one_gpu(stage, *names)
    for name in names:
        stage.running(name)
        assert any(path.startswith("/dev/nvidia") for path in stage.seen(name).nodes)

    # The next agent takes over: pods keep running, new ones start, and Unprepare finds what the old agent did.
    slices = {item["metadata"]["uid"] for item in chart.slices(node)}
    chart.install(node, agent__podAnnotations__upgrade="second")
    (second,) = until("one agent", lambda: [p for p in [chart.pods()] if len(p) == 1], 60)[0]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert {item["metadata"]["uid"] for item in chart.slices(node)} == slices, "the slices were not adopted"
    check_running(stage, *names)
    use_one_gpu(stage, "later")
    stage.running("later")

    # Uninstalling now would leave pods that can't end.
    with pytest.raises(subprocess.SubprocessError, match=r"claim default/user-0-gpu-.*used by pods user-0"):
        chart.uninstall()
    assert [p for p in cluster.api.list("Pod", NAMESPACE) if "uninstall-check" in p["metadata"]["name"]]
    assert len(chart.pods()) == 1, "the refused uninstall removed the agents"
    assert chart.helm("list", "--short").split() == ["dra-driver"], "the refused uninstall locked the release"
    chart.install(node, agent__podAnnotations__upgrade="third")
    until("one agent", lambda: len(chart.pods()) == 1, 60)
    chart.helm("test", "dra-driver")  # fails where the doctor finds an error or a warning

    for name in (*names, "later"):
        stage.delete_pod(name)
    chart.uninstall()
    nothing_is_left(chart)


def test_no_value_has_to_be_set_for_an_agent_that_opens_devices_and_takes_less_than_30_mib_without_a_gpu(
    chart: Chart,
) -> None:
    notes = chart.install_plainly()
    assert "kubectl get resourceslices" in notes
    pods = chart.pods()
    assert len(pods) == len(chart.cluster.nodes)
    name = pods[0]["metadata"]["name"]
    until("idle", lambda: "idle until one appears" in chart.log(name), 10)
    memory = chart.memory(name)
    print(f"\nan idle agent: {memory:.1f} MiB", end="")
    assert memory < 30
    opens_character_devices(chart, name)
    chart.uninstall()
    nothing_is_left(chart)


def test_a_release_of_any_name_is_installed_twice_and_rolled_back_and_a_second_one_is_refused(
    chart: Chart, stage: Stage
) -> None:
    node, api = stage.node, chart.cluster.api
    at = ("-n", "gpus")

    def install(release: str, *options: str, **changed: str) -> str:
        return chart.helm("upgrade", release, str(CHART), "--install", *at, *options, *chart.values(node, **changed))

    def agents() -> list[str]:
        found = api.list("Pod", "gpus", labelSelector="app.kubernetes.io/component=agent")
        return [pod["metadata"]["uid"] for pod in found]

    def refusals() -> str:
        events = api.list("Event", "gpus", fieldSelector="involvedObject.kind=DaemonSet")
        return "".join(event["message"] for event in events)

    wait = ("--wait", "--timeout", "120s")
    try:
        # The new namespace has no level, and the cluster's default admits no agent: the chart sets the label. The
        # cluster also requires a quota for the agents' priority class, which the chart creates.
        install("mine", "--create-namespace", priorityClass__quota="false")
        until("the refusal", lambda: "insufficient quota to match these scopes" in refusals(), 60)
        install("mine", *wait)
        assert api.get("Namespace", "gpus")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
        chart.published(node)
        serves = r"gpus/mine-dra-driver-agent \(release mine\) already serves"
        for where in ("gpus", "elsewhere"):
            with pytest.raises(subprocess.SubprocessError, match=serves):
                install("second", "--create-namespace", "-n", where)
        # Installing the same again changes nothing, except that the finished Job is removed.
        before = agents()
        install("mine", *wait)
        assert agents() == before
        assert "pod-security" not in chart.cluster.kubectl("get", "job,role,sa", *at, "-o", "name")
        install("mine", *wait, agent__podAnnotations__upgrade="second")
        until("one agent", lambda: len(agents()) == 1, 60)
        assert agents() != before
        chart.helm("rollback", "mine", "2", *at, *wait)
        until("one agent", lambda: len(agents()) == 1, 60)
        assert chart.published(node)
    finally:
        chart.helm("uninstall", "mine", *at, "--ignore-not-found", "--wait", "--timeout", "90s")
    nothing_is_left(chart)


def is_served(manifest: dict[str, Any]) -> bool:
    """Return whether the cluster has the kind: those of Prometheus' operator and of cert-manager are not installed."""
    return not manifest["apiVersion"].startswith(("monitoring.coreos.com/", "cert-manager.io/"))


@pytest.mark.parametrize("case", [*CASES, "dry run of the manifests"])
def test_the_api_server_accepts_everything_that_the_chart_renders(chart: Chart, case: str) -> None:
    cluster = chart.cluster
    if case in CASES:
        sets = [word for value in CASES[case] for word in ("--set", value)]
        words = ("--kube-version", f"{cluster.version}.0", "--skip-tests")
        rendered = chart.helm("template", "dry", str(CHART), *words, *sets)
        rendered = yaml.safe_dump_all(one for one in yaml.safe_load_all(rendered) if one and is_served(one))
    else:
        rendered = (REPOSITORY / "deploy" / "manifests" / "driver.yaml").read_text()
    if not cluster.api.find("Namespace", NAMESPACE):
        cluster.kubectl("create", "namespace", NAMESPACE)
    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=rendered)
    assert said.count("(server dry run)") > 10


@pytest.mark.soak
def test_no_device_is_published_while_a_device_plugin_serves_the_gpus(chart: Chart, stage: Stage) -> None:
    node, cluster = stage.node, chart.cluster
    argv = [sys.executable, "-m", device_plugin.__name__, "nvidia.com/gpu", "4"]
    plugin = node.daemon("device-plugin", argv, environment={"PYTHONPATH": str(REPOSITORY)})
    plugin.start()

    def offered() -> str:
        return cluster.api.get("Node", node.name)["status"]["allocatable"].get("nvidia.com/gpu", "0")

    until("the plugin's devices in the node's allocatable", lambda: offered() == "4", 60)
    chart.install(node)
    (pod,) = chart.pods()
    name = pod["metadata"]["name"]
    until("an empty slice", lambda: chart.slices(node), 30)
    assert chart.devices(node) == []
    assert "no device is published" in chart.log(name)

    def reasons() -> list[str]:
        events = cluster.api.list("Event", "default", fieldSelector=f"involvedObject.name={node.name}")
        return [event["reason"] for event in events]

    until("an event on the node", lambda: "DevicePluginServesGPUs" in reasons(), 10)
    assert "the agent publishes none of them: a device plugin" in chart.run(name, "/usr/bin/dra-driver", "devices")
    plugin.stop(20)
    until("the kubelet to notice", lambda: offered() == "0", 60)
    assert chart.published(node, 90), "the agent did not look again"
    plugin.start()
    until("the devices withdrawn", lambda: not chart.devices(node), 120)
    plugin.stop(20)


def test_a_namespace_that_enforces_a_stricter_level_stops_the_install_with_the_command(chart: Chart) -> None:
    label = "pod-security.kubernetes.io/enforce"
    chart.cluster.kubectl("create", "namespace", "strict")
    chart.cluster.kubectl("label", "namespace", "strict", f"{label}=restricted")
    with pytest.raises(
        subprocess.SubprocessError, match=f"kubectl label --overwrite namespace strict {label}=privileged"
    ):
        chart.helm("install", "other", str(CHART), "-n", "strict")


def test_pods_written_for_the_device_plugin_and_quotas_by_class_work(chart: Chart, stage: Stage) -> None:
    if not chart.cluster.gates and chart.cluster.version < "1.36":
        pytest.skip("extended resources need their gate")
    chart.install(stage.node, deviceClasses__extendedResources__enabled="true", deviceClasses__examples="true")
    chart.published(stage.node)
    plain = workload.container("main")
    plain["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    stage.create(workload.pod("default", "plain", plain))
    stage.running("plain")
    assert len([path for path in stage.seen("plain").nodes if path.removeprefix("/dev/nvidia").isdigit()]) == 1
    stage.delete_pod("plain")

    # Two of a class are allowed, and not one more.
    example = REPOSITORY / "examples" / "resourceclaims" / "25-resource-quota.yaml"
    (quota,) = [c for c in yaml.safe_load_all(example.read_text()) if c["kind"] == "ResourceQuota"]
    quota["metadata"]["namespace"] = "default"
    stage.create(quota)
    large = workload.devices(workload.request("gpu", "gpu-at-least-40gi.nvidia.com"))
    try:
        until(
            "the quota counts",
            lambda: chart.cluster.api.get("ResourceQuota", "large-gpus", "default").get("status"),
            30,
        )
        stage.create(workload.claim("default", "first", large), workload.claim("default", "second", large))
        with pytest.raises(Refused, match="exceeded quota: large-gpus"):
            stage.create(workload.claim("default", "third", large))
    finally:
        chart.cluster.api.delete("ResourceQuota", "large-gpus", "default")
        chart.cluster.kubectl("delete", "-n", "default", "resourceclaims", "first", "second", "--ignore-not-found")
