"""An account with rights in one namespace uses `claims`, `slices` and `explain`; the role for people adds to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.node import Node
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
NOT_KNOWN = 5


def kubeconfig_of(cluster: Cluster, namespace: str, folder: Path) -> Path:
    """Write the kubeconfig of a ServiceAccount that may view its own namespace and nothing else."""
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "person")
    account = f"--serviceaccount={namespace}:person"
    cluster.kubectl("-n", namespace, "create", "rolebinding", "person", "--clusterrole=view", account)
    token = cluster.kubectl("-n", namespace, "create", "token", "person").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = namespace
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_rights_in_one_namespace_are_enough_to_see_it_and_the_role_for_people_adds_the_fleet(
    cluster: Cluster, node: Node, agent: Agent, stage: Stage, tmp_path: Path
) -> None:
    person = str(kubeconfig_of(cluster, stage.namespace, tmp_path))

    def run(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "dra_driver", *words, "--kubeconfig", person]
        surroundings = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("user")

    status, out, err = run("claims")
    assert status == NOT_KNOWN
    assert f"{stage.namespace}/user-gpu-" in out
    missing = "the right to list them is missing: bind ClusterRole dra-driver-viewer"
    assert f"ResourceSlices and DeviceClasses ({missing})" in err
    status, out, _ = run("explain", "pod", "user")
    assert (status, "holds gpu-0000" in out) == (0, True), out
    status, out, err = run("slices")
    assert status == NOT_KNOWN
    assert "ServiceAccount" not in err

    name = f"{stage.namespace}-person"
    account = f"--serviceaccount={stage.namespace}:person"
    cluster.kubectl("create", "clusterrolebinding", name, "--clusterrole=dra-driver-viewer", account)
    try:
        status, out, err = run("claims")
        assert (status, err) == (0, "")
        status, out, err = run("slices")
        assert node.name in out
        missing = "the right to list them is missing: bind ClusterRole view for all of them"
        assert f"other namespaces than {stage.namespace} ({missing})" in err
    finally:
        cluster.kubectl("delete", "clusterrolebinding", name)
