"""What `simulate --defrag` proposes makes room on the real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
NO_MATCH = 1


def proposals(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    """Return what `simulate` proposes for the pods that wait in the cluster."""
    surroundings = os.environ | {"PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(cluster.kubeconfig)}
    argv = [sys.executable, "-m", "dra_driver", "simulate", *words, "-o", "json"]
    done = subprocess.run(argv, env=surroundings, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == NO_MATCH, done.stdout + done.stderr  # a pod waits
    found: list[dict[str, Any]] = json.loads(done.stdout)["rearrangements"]
    return found


def test_a_pod_that_waits_for_whole_gpus_runs_once_the_proposed_pod_is_elsewhere(
    agent: Agent, start_agent: Callable[..., Agent], stage: Stage, cluster: Cluster
) -> None:
    if cluster.compares_other_devices:
        pytest.skip("simulate does not judge a request for several devices, because the scheduler may crash")
    whole = [name for name, one in agent.devices().items() if one["attributes"]["type"] == {"string": "gpu"}]
    here = f'"productName" in {(domain := "device.attributes[" + repr(agent.driver) + "]")}'
    product = agent.devices()[whole[0]]["attributes"]["productName"]["string"]
    small = pod(stage.namespace, "small", container("main", "gpu"), templates={"gpu": "one-gpu"})
    stage.create(template(stage.namespace, "one-gpu", devices(request("gpu"))), small)
    assert stage.check("small")["spec"]["nodeName"] == agent.node.name

    other = start_agent(cluster.nodes[1], hardware="simulated:l40s")
    other.published()
    all_of_them = request("gpus", selector=f"{here} && {domain}.productName == {product!r}", count=len(whole))
    stage.create(
        template(stage.namespace, "all", devices(all_of_them)),
        pod(stage.namespace, "big", container("main", "gpus"), templates={"gpus": "all"}),
    )
    stage.pending("big", "cannot allocate")

    [found] = proposals(cluster, "--defrag")
    assert (found["job"].rpartition("/")[2], found["node"]) == ("big", agent.node.name)
    [move] = found["moves"]
    assert (move["job"].rpartition("/")[2], move["target"]) == ("small", other.node.name)
    assert proposals(cluster) == []

    stage.delete_pod("small")
    stage.running("big")
    stage.create(small)
    assert stage.running("small")["spec"]["nodeName"] == other.node.name
    there = stage.on(cluster.nodes[1])
    there.delete_pod("small")
    stage.delete_pod("big")
