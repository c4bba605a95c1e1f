"""`kubectl dra` by the real kubectl on a real cluster: the plugin is found, sees the fleet, and completes its names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lane.agent import Agent
from lane.cluster import REPOSITORY, Cluster
from lane.node import Node
from lane.stage import Stage
from lane.workload import container, devices, pod, request, template

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
PROGRAMS = {
    "kubectl-dra": "from dra_driver.__main__ import kubectl_plugin as run",
    "kubectl_complete-dra": "from dra_driver.cli.completion.command import kubectl_complete as run",
}


def test_kubectl_runs_the_plugin_and_completes_what_is_in_the_cluster(
    cluster: Cluster, node: Node, agent: Agent, stage: Stage, tmp_path: Path
) -> None:
    for name, call in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\nimport sys\n{call}\nsys.exit(run())\n")
        (tmp_path / name).chmod(0o755)
    surroundings = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "PYTHONPATH": str(REPOSITORY),
    }

    def said(*words: str) -> str:
        command = [str(cluster.programs["kubectl"]), *words]
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in {0, 1}, done.stderr
        return done.stdout

    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("user")
    assert node.name in said("dra", "slices")
    assert said("__complete", "dra", "sl").startswith("slices\t")
    assert node.name in said("__complete", "dra", "simulate", "--drain", "").splitlines()
    claims = said("__complete", "dra", "explain", "-n", stage.namespace, "claim", "").splitlines()
    assert [line for line in claims if line.startswith("user-gpu-")]
    published = said("__complete", "dra", "cel", "explain", "--device", "gpu-").splitlines()
    assert [line for line in published if line.startswith("gpu-0000-")]
    assert published[-1] == ":4"
