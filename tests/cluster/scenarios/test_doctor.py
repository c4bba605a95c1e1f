"""The doctor on a real cluster: nothing to say of a healthy one, and the right thing of one that was spoilt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.agent import DRIVER, Agent
from tests.cluster.cluster import REPOSITORY, Cluster
from tests.cluster.node import Node
from tests.cluster.sandbox import until
from tests.cluster.stage import Stage
from tests.cluster.workload import container, devices, pod, request, template

# The doctor is told which machine to look at.
pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
GATES = {"DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaints", "DRAExtendedResource"}


@pytest.fixture
def examine(cluster: Cluster, node: Node, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the doctor as a person on the node would; give its report."""

    def run(*arguments: str, hardware: str = "simulated:demo-h100") -> dict[str, Any]:
        command = [
            *(sys.executable, "-m", "dra_driver", "doctor", "--output", "json"),
            *("--kubeconfig", str(cluster.kubeconfig), "--node-name", node.name, "--hardware", hardware),
            *("--cdi-root", str(node.cdi), "--host-root", str(tmp_path)),
            *("--kubelet-registrar-directory-path", str(node.registry)),
            *("--kubelet-plugins-directory-path", str(node.plugins)),
            *("--device-plugins-directory-path", str(node.plugins.parent / "device-plugins")),
            *arguments,
        ]
        surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
        assert done.returncode in {0, 1}, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["isClean"] == (done.returncode == 0)
        return report

    return run


def found(report: dict[str, Any]) -> set[str]:
    """Give the ids of errors and warnings."""
    return {one["id"] for one in report["findings"] if one["severity"] != "note"}


@pytest.mark.smoke
def test_a_healthy_cluster_and_node_are_clean_and_gates_are_told(
    cluster: Cluster, agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "healthy", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("healthy")
    report = examine()
    assert report["unseen"] == []
    assert found(report) == set(), report["findings"]
    off = {one["subject"] for one in report["findings"] if one["id"] == "kubernetes-gate-off"}
    assert off == (set() if cluster.keeps_gated else GATES)
    stage.delete_pod("healthy")


def test_without_its_agent_the_doctor_says_who_is_missing(
    agent: Agent, stage: Stage, examine: Callable[..., dict[str, Any]]
) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "held", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("held")
    agent.kill()
    report = examine()
    assert {"node-not-registered", "node-dead-socket"} <= found(report)
    agent.start()
    until("registered again", lambda: found(examine()) == set(), 30)
    stage.delete_pod("held")


def test_spoilt_slices_classes_and_policies_are_found(
    cluster: Cluster, agent: Agent, examine: Callable[..., dict[str, Any]]
) -> None:
    broken = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "doctor-broken"},
        "spec": {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].nope == 1'}}]},
    }
    cluster.api.create(broken)
    try:
        assert found(examine()) == {"class-broken"}
    finally:
        cluster.api.delete("DeviceClass", "doctor-broken")
    assert {"slices-differ"} <= found(examine(hardware="simulated:dgx-a100"))


def test_a_support_bundle_is_written_for_its_owner_alone(
    agent: Agent, examine: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar.gz"
    examine("--bundle", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    listed = subprocess.run(["tar", "tzf", str(file)], capture_output=True, text=True, check=True).stdout.split()
    assert "dra-driver-bundle/cluster/slices.json" in listed
    assert "dra-driver-bundle/node/rows.json" in listed
