"""The chart, installed: the agent as its DaemonSet's pod, from the built image, under its own ServiceAccount."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lane import binaries, workload
from lane.api import Refused
from lane.chart import CHART, NAMESPACE, Chart
from lane.cluster import REPOSITORY, Cluster
from lane.drivers import device_plugin
from lane.nvml_machine import NvmlMachine
from lane.sandbox import until
from lane.stage import Stage
from tests.support.chart import CASES
from tests.support.mps.parts import processes_below

POPULATION = {"whole": 5, "part": 8, "shared": 7}


@pytest.fixture(scope="module")
def chart_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without the driver, which admits privileged pods only where a label allows them."""
    try:
        binaries.helm()
    except binaries.BinariesMissing as missing:
        pytest.skip(str(missing))
    version, gates = os.environ.get("K8S", "1.35"), os.environ.get("GATES") != "default"
    with Cluster(version=version, gates=gates, pod_security="baseline") as started:
        yield started
        if request.session.testsfailed:
            started.keep_logs()


@pytest.fixture(scope="module")
def chart(chart_cluster: Cluster) -> Chart:
    return Chart(chart_cluster)


@pytest.fixture(autouse=True)
def nothing_left(chart: Chart) -> Iterator[None]:
    yield
    api = chart.cluster.api
    # A failed scenario leaves pods, which have to end while there is still an agent.
    for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
        api.call("DELETE", api.path(kind, namespace="default"))
    until("no pod left", lambda: not api.list("Pod", "default"), 90)
    chart.helm("uninstall", "dra-driver", "--no-hooks", "--ignore-not-found", "--wait", "--timeout", "60s")
    until("the kubelet to drop the slices", lambda: not chart.slices(chart.cluster.nodes[0]), 60)


@pytest.fixture
def stage(chart_cluster: Cluster) -> Stage:
    return Stage(chart_cluster, chart_cluster.nodes[0], "default")


def nothing_is_left(chart: Chart) -> None:
    """Check that an uninstalled driver left neither objects nor files."""

    def gone() -> bool:
        assert objects_left(chart.cluster) == []
        return True

    until("no object left", gone, 30)
    for node in chart.cluster.nodes:
        assert list(node.cdi.iterdir()) == []
        assert list(node.registry.iterdir()) == []
        assert sorted(path.relative_to(node.plugins).as_posix() for path in node.plugins.rglob("*")) == []
        until("the kubelet to drop the slices", lambda node=node: not chart.slices(node), 60)


def use_one_gpu(stage: Stage, *names: str, request: str = "gpu.nvidia.com") -> None:
    """Start pods that each use a separate device."""
    if not stage.cluster.api.find("ResourceClaimTemplate", request, "default"):
        stage.create(workload.template("default", request, workload.devices(workload.request("gpu", request))))
    for name in names:
        stage.create(workload.pod("default", name, workload.container("main", "gpu"), templates={"gpu": request}))


def run_on(stage: Stage, *names: str) -> None:
    """Check that pods run and were never restarted."""
    for name in names:
        assert all(s["restartCount"] == 0 for s in stage.running(name)["status"]["containerStatuses"])


def run_out_of_memory(chart: Chart) -> None:
    """Make another process in the agent's container use up its memory, and wait until the killed agent runs again."""
    (pod,) = chart.pods()
    name = pod["metadata"]["name"]
    # The kernel's choice must not depend on the score that a sandbox lets a process set for itself.
    takes_all = "path.joinpath('oom_score_adj').write_text('1000')\nheld = [b'x' * 2**20 for _ in iter(int, 1)]"
    with pytest.raises(subprocess.SubprocessError):
        chart.in_agent(name, f"path = agent()\n{takes_all}")

    def killed() -> bool:
        (status,) = chart.cluster.api.get("Pod", name, NAMESPACE)["status"]["containerStatuses"]
        assert status["lastState"].get("terminated", {}).get("reason") == "OOMKilled", status["lastState"]
        assert status["ready"], status["state"]
        return True

    until("the agent killed and ready again", killed, 90)


def opens_character_devices(chart: Chart, pod: str) -> None:
    """Check that an agent's container can open device nodes, including ones that it makes itself."""
    place = "/var/lib/kubelet/plugins/test"
    # No driver has this number, so a process that may open the node gets ENXIO; the device cgroup of an unprivileged
    # container returns EPERM.
    unknown = "os.mknod(place + '-unknown', 0o600 | stat.S_IFCHR, os.makedev(240, 200))"
    code = f"""import errno, os, stat
place = {place!r}
os.mknod(place + '-null', 0o600 | stat.S_IFCHR, os.makedev(1, 3))
{unknown}
print(os.write(os.open(place + '-null', os.O_RDWR), b'x'), os.write(os.open('/dev/null', os.O_RDWR), b'x'))
try:
    os.open(place + '-unknown', os.O_RDWR)
except OSError as error:
    print(errno.errorcode[error.errno])
os.unlink(place + '-null'), os.unlink(place + '-unknown')
"""
    path = ["exec", "-n", NAMESPACE, pod, "--", "/usr/bin/python3", "-c", code]
    assert chart.cluster.kubectl(*path).split() == ["1", "1", "ENXIO"]


def objects_left(cluster: Cluster) -> list[str]:
    kinds = "ds,job,pod,cm,secret,sa,svc,resourcequota,networkpolicy,role,rolebinding"
    kinds += ",clusterrole,clusterrolebinding,deviceclass"
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
    run_on(stage, *names)
    use_one_gpu(stage, "later")
    stage.running("later")

    # Uninstalling now would leave pods that can't end.
    with pytest.raises(subprocess.SubprocessError, match=r"claim default/user-0-gpu-.*used by pods user-0"):
        chart.uninstall()
    assert [p for p in cluster.api.list("Pod", NAMESPACE) if "uninstall-check" in p["metadata"]["name"]]
    assert len(chart.pods()) == 1, "the refused uninstall took the agents away"

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


def test_a_release_of_any_name_gets_in_comes_twice_goes_back_and_lets_no_second_one_in(
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


@pytest.mark.parametrize("case", [*CASES, "dry run of the manifests"])
def test_the_api_server_takes_everything_that_the_chart_renders(chart: Chart, case: str) -> None:
    cluster = chart.cluster
    if case in CASES:
        chosen = [
            value for value in CASES[case] if "serviceMonitor" not in value
        ]  # the kind ServiceMonitor is not installed
        sets = [word for value in chosen for word in ("--set", value)]
        rendered = chart.helm("template", "dry", str(CHART), "--kube-version", f"{cluster.version}.0", *sets)
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


@pytest.mark.soak
def test_twenty_pods_outlive_an_agent_that_runs_out_of_memory_an_upgrade_and_a_downgrade(
    chart: Chart, stage: Stage
) -> None:
    # With the partitions as they are, because parts made on demand would take whole GPUs.
    chart.install(stage.node, agent__mig__mode="static")
    chart.published(stage.node)
    # Everything that the machine has: six GPUs, one of them for a claim of seven pods, and eight partitions.
    whole, parts, shared = [[f"{kind}-{n}" for n in range(count)] for kind, count in POPULATION.items()]
    use_one_gpu(stage, *whole)
    use_one_gpu(stage, *parts, request="mig.nvidia.com")
    stage.create(workload.claim("default", "shared", workload.devices(workload.request("gpu"))))
    for name in shared:
        stage.create(workload.pod("default", name, workload.container("main", "gpu"), claims={"gpu": "shared"}))
    assert len([*whole, *parts, *shared]) == 20
    run_on(stage, *whole, *parts, *shared)

    run_out_of_memory(chart)
    run_on(stage, *whole, *parts, *shared)
    for kind in (whole, parts, shared):
        stage.delete_pod(kind.pop())

    # Upgrade and downgrade with the same image as both versions; another scenario covers the ledger's versions.
    for version in ("second", "first"):
        chart.install(stage.node, agent__mig__mode="static", agent__podAnnotations__version=version)
        until("one agent", lambda: len(chart.pods()) == 1, 60)
        run_on(stage, *whole, *parts, *shared)
        use_one_gpu(stage, f"during-{version}")
        stage.running(f"during-{version}")
        stage.delete_pod(f"during-{version}")
    for each in (*whole, *parts, *shared):
        chart.cluster.api.delete("Pod", each, "default")
    for each in (*whole, *parts, *shared):
        chart.cluster.api.wait_gone("Pod", each, "default", seconds=90)
    chart.cluster.api.delete("ResourceClaim", "shared", "default")
    chart.uninstall()
    nothing_is_left(chart)


@pytest.mark.soak
def test_clients_of_mps_outlive_an_agent_that_runs_out_of_memory_and_an_upgrade(chart: Chart, stage: Stage) -> None:
    rule = {"match": {"types": ["gpu"]}, "replicas": 2, "sharing": {"strategy": "MPS"}}
    shared = ["--set-json", f"sharing.config={json.dumps({'version': 'rules/v1', 'rules': [rule]})}"]

    def install(version: str) -> None:
        values = chart.values(stage.node, agent__podAnnotations__version=version, agent__mig__mode="static")
        options = ["--install", "--create-namespace", "--wait", "--timeout", "120s", *values, *shared]
        chart.helm("upgrade", "dra-driver", str(CHART), *options)

    def kept() -> tuple[str, list[int]]:
        (found,) = chart.cluster.api.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=mps")
        return found["metadata"]["uid"], processes_below(Path("/var/lib/kubelet/plugins"))

    install("first")
    chart.published(stage.node)
    tenants = ["tenant-0", "tenant-1"]
    use_one_gpu(stage, *tenants, request="gpu-share-mps.nvidia.com")
    run_on(stage, *tenants)
    assert "CUDA_MPS_PIPE_DIRECTORY" in stage.seen("tenant-0").environment
    before = kept()
    assert len(before[1]) > 0
    (supervisor,) = chart.cluster.api.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=mps")
    said = chart.run(supervisor["metadata"]["name"], "/usr/bin/dra-driver", "mps", "--show")
    assert all(daemon["isReady"] for daemon in json.loads(said)["daemons"])
    run_out_of_memory(chart)
    assert kept() == before
    install("second")
    until("one agent", lambda: len(chart.pods()) == 1, 60)
    assert kept() == before, "the upgrade touched the supervisor or its daemons"
    run_on(stage, *tenants)
    for name in tenants:
        stage.delete_pod(name)
    until("no daemon", lambda: kept()[1] == [], 90)
    chart.uninstall()
    nothing_is_left(chart)


def install_on(chart: Chart, stage: Stage, machine: NvmlMachine, **values: str) -> None:
    """Install the chart with an agent that works on the fake NVIDIA library of a machine."""
    place = str(machine.folder)
    more = {
        "extraArgs": machine.flags,
        "extraEnv": [{"name": name, "value": value} for name, value in machine.environment.items()],
        "extraVolumes": [{"name": "machine", "hostPath": {"path": place}}],
        "extraVolumeMounts": [{"name": "machine", "mountPath": place}],
    }
    sets = [word for name, value in more.items() for word in ("--set-json", f"agent.{name}={json.dumps(value)}")]
    options = ["--install", "--create-namespace", "--wait", "--timeout", "120s", *sets]
    chosen = chart.values(stage.node, **{"agent__hardware": "nvidia", **values})
    chart.helm("upgrade", "dra-driver", str(CHART), *options, *chosen)


@pytest.mark.soak
def test_the_charts_agent_works_on_the_nvidia_library(chart: Chart, stage: Stage, tmp_path: Path) -> None:
    install_on(chart, stage, NvmlMachine(tmp_path))
    assert len(chart.published(stage.node)) > 6
    use_one_gpu(stage, "user")
    stage.check("user")
    stage.delete_pod("user")


def test_a_gpu_driver_is_replaced_as_the_driver_manager_does_it_with_the_agent_last(
    chart: Chart, stage: Stage, tmp_path: Path
) -> None:
    label = "nvidia.com/gpu.deploy.dra-driver"
    kubectl, node = chart.cluster.kubectl, stage.node.name

    def versions() -> set[str]:
        slices = chart.cluster.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={node}")
        attributes = [one["attributes"] for slice_ in slices for one in slice_["spec"].get("devices", [])]
        return {one["driverVersion"]["version"] for one in attributes if "driverVersion" in one}

    def held() -> str:
        """Return what doctor says of those who hold the paused node."""
        argv = [sys.executable, "-m", "dra_driver", "doctor", "--only", "cluster", "-o", "json"]
        surroundings = os.environ | {"PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(chart.cluster.kubeconfig)}
        done = subprocess.run(argv, env=surroundings, capture_output=True, text=True, timeout=90, check=False)
        findings = json.loads(done.stdout)["findings"]
        return "".join(one["message"] for one in findings if one["id"] == "driver-upgrade-held")

    machine = NvmlMachine(tmp_path)
    kubectl("label", "node", node, f"{label}=true", "nvidia.com/gpu.deploy.device-plugin=true")
    install_on(chart, stage, machine, driverManager__enabled="true")
    chart.published(stage.node)
    before = versions()
    use_one_gpu(stage, "trains")
    stage.check("trains")

    # The driver manager pauses the other operands, cordons, evicts the pods with claims, and pauses a DRA driver last.
    kubectl("label", "--overwrite", "node", node, "nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade")
    assert "trains" in held()
    kubectl("cordon", node)
    stage.delete_pod("trains")
    assert held() == ""
    kubectl("label", "--overwrite", "node", node, f"{label}=paused-for-driver-upgrade")
    until("the agent to end", lambda: chart.pods() == [], 60)
    assert [one for one in stage.node.cdi.iterdir() if one.suffix == ".json"] == []

    machine.library.rename(away := machine.library.with_name("replaced"))
    machine.state.driver_version = "590.44.01"
    machine.write()
    away.rename(machine.library)
    kubectl("label", "--overwrite", "node", node, f"{label}=true", "nvidia.com/gpu.deploy.device-plugin=true")
    until("devices of the new driver", lambda: versions() == {"590.44.1"}, 120)
    assert before != {"590.44.1"}
    kubectl("uncordon", node)
    use_one_gpu(stage, "trains-on")
    stage.check("trains-on")
    stage.delete_pod("trains-on")
    kubectl("label", "node", node, f"{label}-", "nvidia.com/gpu.deploy.device-plugin-")


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
