"""The chart, installed: the agent as its DaemonSet's pod, from the built image, under its own ServiceAccount."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster import binaries, workload
from tests.cluster.api import Refused
from tests.cluster.chart import CHART, NAMESPACE, Chart
from tests.cluster.cluster import REPOSITORY, Cluster
from tests.cluster.sandbox import until
from tests.cluster.stage import Stage


@pytest.fixture(scope="module")
def chart_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster on which nothing of the driver is deployed."""
    try:
        binaries.helm()
    except binaries.BinariesMissing as missing:
        pytest.skip(str(missing))
    with Cluster(version=os.environ.get("K8S", "1.35"), gates=os.environ.get("GATES") != "default") as started:
        yield started
        if request.session.testsfailed:
            started.keep_logs()


@pytest.fixture(scope="module")
def chart(chart_cluster: Cluster) -> Chart:
    return Chart(chart_cluster)


@pytest.fixture(autouse=True)
def nothing_left(chart: Chart) -> Iterator[None]:
    yield
    chart.helm("uninstall", "dra-driver", "--no-hooks", "--ignore-not-found", "--wait", "--timeout", "60s")
    until("the kubelet to drop the slices", lambda: not chart.slices(chart.cluster.nodes[0]), 60)


@pytest.fixture
def stage(chart_cluster: Cluster) -> Stage:
    return Stage(chart_cluster, chart_cluster.nodes[0], "default")


def objects_left(cluster: Cluster) -> list[str]:
    kinds = "ds,job,sa,svc,resourcequota,networkpolicy,clusterrole,clusterrolebinding,deviceclass"
    kinds += ",validatingadmissionpolicy,validatingadmissionpolicybinding"
    said = cluster.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/name=dra-driver", "-o", "name")
    return said.split()


def test_from_install_to_running_pods_through_an_upgrade_to_nothing_left(chart: Chart, stage: Stage) -> None:
    node, cluster = stage.node, chart.cluster
    notes = chart.install(node)
    assert "rollout status" in notes
    (first,) = chart.pods()
    assert first["spec"]["containers"][0]["securityContext"]["privileged"] is True
    assert len(chart.published(node)) > 6

    gpu = workload.devices(workload.request("gpu"))
    names = [f"user-{number}" for number in range(3)]
    stage.create(workload.template("default", "one", gpu))
    for name in names:
        stage.create(workload.pod("default", name, workload.container("main", "gpu"), templates={"gpu": "one"}))
    for name in names:
        stage.running(name)
        assert any(path.startswith("/dev/nvidia") for path in stage.seen(name).nodes)

    # The next agent takes over; pods run on, new ones start, and Unprepare finds what the old agent did.
    slices = {item["metadata"]["uid"] for item in chart.slices(node)}
    chart.install(node, agent__podAnnotations__upgrade="second")
    (second,) = until("one agent", lambda: [p for p in [chart.pods()] if len(p) == 1], 60)[0]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert {item["metadata"]["uid"] for item in chart.slices(node)} == slices, "the slices were not adopted"
    for name in names:
        assert all(s["restartCount"] == 0 for s in stage.running(name)["status"]["containerStatuses"])
    stage.create(workload.pod("default", "later", workload.container("main", "gpu"), templates={"gpu": "one"}))
    stage.running("later")

    # An uninstall would leave pods that can't end.
    with pytest.raises(subprocess.SubprocessError):
        chart.uninstall()
    (job,) = [p for p in cluster.api.list("Pod", NAMESPACE) if "uninstall-check" in p["metadata"]["name"]]
    said = chart.log(job["metadata"]["name"])
    assert "claim default/user-0-gpu-" in said
    assert "used by pods user-0" in said
    assert len(chart.pods()) == 1, "the refused uninstall took the agents away"

    for name in (*names, "later"):
        stage.delete_pod(name)
    cluster.api.delete("ResourceClaimTemplate", "one", "default")
    chart.uninstall()
    until("no object left", lambda: objects_left(cluster) == [] or pytest.fail(str(objects_left(cluster))), 30)
    assert list(node.cdi.iterdir()) == []
    assert not list(node.registry.glob("gpu.nvidia.com*"))
    until("the kubelet to drop the slices", lambda: not chart.slices(node), 60)


def test_the_agents_pod_opens_character_devices(chart: Chart, stage: Stage) -> None:
    chart.install(stage.node)
    (pod,) = chart.pods()
    place = stage.node.plugins / "test"
    # No driver has this number: whoever may open it is told so (ENXIO); the device cgroup of a container that is not
    # privileged says EPERM.
    unknown = "os.mknod(place + '-unknown', 0o600 | stat.S_IFCHR, os.makedev(240, 200))"
    code = f"""import errno, os, stat
place = {str(place)!r}
os.mknod(place + '-null', 0o600 | stat.S_IFCHR, os.makedev(1, 3))
{unknown}
print(os.write(os.open(place + '-null', os.O_RDWR), b'x'), os.write(os.open('/dev/null', os.O_RDWR), b'x'))
try:
    os.open(place + '-unknown', os.O_RDWR)
except OSError as error:
    print(errno.errorcode[error.errno])
os.unlink(place + '-null'), os.unlink(place + '-unknown')
"""
    path = ["exec", "-n", NAMESPACE, pod["metadata"]["name"], "--", "/usr/bin/python3", "-c", code]
    assert chart.cluster.kubectl(*path).split() == ["1", "1", "ENXIO"]


@pytest.mark.soak
def test_no_device_is_published_while_a_device_plugin_serves_the_gpus(chart: Chart, stage: Stage) -> None:
    node, cluster = stage.node, chart.cluster
    # What the kubelet writes for a plugin; it keeps what others wrote there.
    status = ["patch", "node", node.name, "--subresource=status", "--type=merge", "-p"]
    cluster.kubectl(
        *status, '{"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}}'
    )
    chart.install(node)
    (pod,) = chart.pods()
    until("an empty slice", lambda: chart.slices(node), 30)
    assert chart.devices(node) == []
    assert "no device is published" in chart.log(pod["metadata"]["name"])

    def reasons() -> list[str]:
        events = cluster.api.list("Event", "default", fieldSelector=f"involvedObject.name={node.name}")
        return [event["reason"] for event in events]

    until("an event on the node", lambda: "DevicePluginServesGPUs" in reasons(), 10)
    cluster.kubectl(
        *status, '{"status": {"capacity": {"nvidia.com/gpu": null}, "allocatable": {"nvidia.com/gpu": null}}}'
    )
    assert chart.published(node, 90), "the agent did not look again"
    # And it comes back, seen by its socket.
    folder = node.kubelet_root / "device-plugins"
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(folder / "nvidia-gpu.sock"))
        plugin.listen()
        until("the devices withdrawn", lambda: not chart.devices(node), 90)
        command = ["exec", "-n", NAMESPACE, pod["metadata"]["name"], "--", "/usr/bin/dra-driver", "devices"]
        flags = ["--hardware=simulated:demo-h100", f"--device-plugins-directory-path={folder}"]
        assert "the agent publishes none of them" in cluster.kubectl(*command, *flags)
    (folder / "nvidia-gpu.sock").unlink()


def test_a_namespace_that_enforces_a_stricter_level_stops_the_install_with_the_command(chart: Chart) -> None:
    label = "pod-security.kubernetes.io/enforce"
    chart.cluster.kubectl("create", "namespace", "strict")
    chart.cluster.kubectl("label", "namespace", "strict", f"{label}=restricted")
    with pytest.raises(
        subprocess.SubprocessError, match=f"kubectl label --overwrite namespace strict {label}=privileged"
    ):
        chart.helm("install", "other", str(CHART), "-n", "strict")


def test_pods_written_for_the_device_plugin_and_quotas_by_class_work(chart: Chart, stage: Stage) -> None:
    if not chart.cluster.gates:
        pytest.skip("extended resources need their gate")
    chart.install(stage.node, deviceClasses__extendedResources__enabled="true")
    chart.published(stage.node)
    plain = workload.container("main")
    plain["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    stage.create(workload.pod("default", "plain", plain))
    stage.running("plain")
    assert len([path for path in stage.seen("plain").nodes if path.removeprefix("/dev/nvidia").isdigit()]) == 1
    stage.delete_pod("plain")

    # Two of a class, and not one more.
    quota = REPOSITORY / "examples" / "workloads" / "resource-quota.yaml"
    chart.cluster.kubectl("apply", "-n", "default", "-f", str(quota))
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
        chart.cluster.kubectl("delete", "-n", "default", "-f", str(quota))
        chart.cluster.kubectl("delete", "-n", "default", "resourceclaims", "first", "second", "--ignore-not-found")
