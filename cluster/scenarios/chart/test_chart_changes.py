"""The chart's agent while something changes under running pods: the agent itself, and the GPU driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import workload
from cluster.chart import CHART, NAMESPACE, Chart
from cluster.chart_use import POPULATION, check_running, nothing_is_left, run_out_of_memory, use_one_gpu
from cluster.cluster import REPOSITORY
from cluster.machines.nvml_machine import NvmlMachine
from cluster.sandbox import until
from cluster.stage import Stage
from tests.support.mps.parts import processes_below


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
    check_running(stage, *whole, *parts, *shared)

    run_out_of_memory(chart)
    check_running(stage, *whole, *parts, *shared)
    for kind in (whole, parts, shared):
        stage.delete_pod(kind.pop())

    # Upgrade and downgrade with the same image as both versions; another scenario covers the ledger's versions.
    for version in ("second", "first"):
        chart.install(stage.node, agent__mig__mode="static", agent__podAnnotations__version=version)
        until("one agent", lambda: len(chart.pods()) == 1, 60)
        check_running(stage, *whole, *parts, *shared)
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
    check_running(stage, *tenants)
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
    check_running(stage, *tenants)
    for name in tenants:
        stage.delete_pod(name)
    until("no daemon", lambda: kept()[1] == [], 90)
    chart.uninstall()
    nothing_is_left(chart)


@pytest.mark.soak
def test_the_charts_agent_works_on_the_nvidia_library(chart: Chart, stage: Stage, tmp_path: Path) -> None:
    chart.install_on(stage.node, NvmlMachine(tmp_path))
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
        attributes = [one["attributes"] for slice_ in slices for one in slice_["spec"].get("devices") or []]
        return {one["driverVersion"]["version"] for one in attributes if "driverVersion" in one}

    def held() -> str:
        """Return what doctor reports about the holders of the paused node."""
        argv = [sys.executable, "-m", "dra_driver", "doctor", "--only", "cluster", "-o", "json"]
        surroundings = os.environ | {"PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(chart.cluster.kubeconfig)}
        done = subprocess.run(argv, env=surroundings, capture_output=True, text=True, timeout=90, check=False)
        findings = json.loads(done.stdout)["findings"]
        return "".join(one["message"] for one in findings if one["id"] == "driver-upgrade-held")

    machine = NvmlMachine(tmp_path)
    kubectl("label", "node", node, f"{label}=true", "nvidia.com/gpu.deploy.device-plugin=true")
    chart.install_on(stage.node, machine, driverManager__enabled="true")
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
