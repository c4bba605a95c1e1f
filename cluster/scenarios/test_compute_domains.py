"""NVIDIA's ComputeDomain plugin on the same node: each driver prepares its own, and neither waits for the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY
from cluster.drivers.compute_domain import CHANNELS, ComputeDomainPlugin
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import claim, container, devices, pod, request

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)


@pytest.fixture
def domains(stage: Stage) -> Iterator[ComputeDomainPlugin]:
    """The plugin; at the end everything of it is removed."""
    plugin = ComputeDomainPlugin(stage)
    until("the kubelet has found the plugin", lambda: plugin.plugin.statuses, 20)
    yield plugin
    api = stage.cluster.api
    for kind in ("Pod", "ResourceClaim"):
        api.call("DELETE", api.path(kind, namespace=stage.namespace))
    until("its claims are gone", lambda: not api.list("ResourceClaim", stage.namespace), PATIENCE)
    plugin.stop()


def test_a_pod_gets_our_gpu_and_the_other_plugins_channel_once_the_domain_is_ready(
    agent: Agent, stage: Stage, domains: ComputeDomainPlugin
) -> None:
    stage.create(
        claim(stage.namespace, "gpu", devices(request("gpu"))),
        claim(stage.namespace, "channel", devices(request("channel", CHANNELS))),
    )
    domains.domain_is_not_ready("channel")
    used = {"gpu": "gpu", "channel": "channel"}
    stage.create(pod(stage.namespace, "worker", container("main", "gpu", "channel"), claims=used))
    until("the pod is told why it waits", lambda: "ComputeDomain" in "".join(stage.events("worker")), PATIENCE)
    domains.domain_is_ready("channel")
    if stage.cluster.repeats_devices:  # our claim is prepared again if its turn had come before the channel's
        until("the container is started", lambda: "Started" in "".join(stage.events("worker")), PATIENCE * 2)
    else:
        stage.running("worker", PATIENCE * 2)
    seen = stage.seen("worker")
    assert "/dev/nvidia-caps-imex-channels/channel0" in seen.nodes
    assert sum(agent.driver in file.name for file in agent.cdi_files()) == 1
    assert {one["id"] for one in _doctor(stage) if one["severity"] != "note"} == set()


def _doctor(stage: Stage) -> list[dict[str, str]]:
    """Return what the doctor finds in the cluster."""
    command = [sys.executable, "-m", "dra_driver", "doctor", "-o", "json", "--only", "cluster"]
    command += ["--kubeconfig", str(stage.cluster.kubeconfig)]
    surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
    findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return findings
