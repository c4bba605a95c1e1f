"""A GPU, CPUs and a network card on one NUMA node: three drivers and one constraint, as examples/numa has them.

The scheduler alone aligns them; the kubelet's Topology Manager sees no devices of claims.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.agent import Agent
from cluster.cluster import REPOSITORY
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage, results
from cluster.workload import claim, container, pod
from tests.support.plugin.stand_in_plugin import StandInPlugin

EXAMPLE = REPOSITORY / "examples" / "numa"
NUMA = "resource.kubernetes.io/numaNode"
pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)


def objects(node: str) -> dict[str, list[dict[str, Any]]]:
    """Return the example's objects by kind, for a node of the cluster."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in ("gpu-cpu-nic.yaml", "other-drivers.yaml"):
        for one in yaml.safe_load_all((EXAMPLE / name).read_text().replace("demo-node", node)):
            found.setdefault(one["kind"], []).append(one)
    return found


@pytest.fixture
def drivers(stage: Stage) -> Iterator[dict[str, StandInPlugin]]:
    """The two other drivers on the stage's node: what they publish, their classes, their plugins."""
    api, example = stage.cluster.api, objects(stage.node.name)
    made = [*example["DeviceClass"], *example["ResourceSlice"]]
    for one in made:
        api.create(one)
    names = [one["spec"]["driver"] for one in example["ResourceSlice"]]
    plugins = {name: StandInPlugin(stage.node.kubelet_root, name).start() for name in names}
    until("the kubelet has found both drivers", lambda: all(one.statuses for one in plugins.values()), 20)
    yield plugins
    for kind in ("Pod", "ResourceClaim"):
        api.call("DELETE", api.path(kind, namespace=stage.namespace))
    until("the claims are gone", lambda: not api.list("ResourceClaim", stage.namespace), PATIENCE)
    for plugin in plugins.values():
        plugin.stop()
    for one in made:
        api.delete(one["kind"], one["metadata"]["name"])


def numa_of(device: dict[str, Any]) -> int:
    """Return the NUMA node that a device publishes."""
    return int(device["attributes"][NUMA]["int"])


def test_a_gpu_cpus_and_a_network_card_come_from_one_numa_node(
    agent: Agent, stage: Stage, drivers: dict[str, StandInPlugin], tmp_path: Path
) -> None:
    example = objects(stage.node.name)
    published = {device["name"]: device for one in example["ResourceSlice"] for device in one["spec"]["devices"]}
    near = claim(stage.namespace, "near", example["ResourceClaimTemplate"][0]["spec"]["spec"])
    user = pod(stage.namespace, "user", container("main", "near"), claims={"near": "near"})
    simulated = offline(stage, [near, user], tmp_path)

    stage.create(near)
    uid = stage.cluster.api.get("ResourceClaim", "near", stage.namespace)["metadata"]["uid"]
    card = next(one for one in published.values() if one["name"].startswith("card"))
    cpus = next(one for one in published.values() if one["name"].startswith("cpu") and numa_of(one) == numa_of(card))
    for driver, device in (("dra.cpu", cpus), ("nic.example.com", card)):
        request = driver.partition(".")[0] if driver.startswith("nic") else "cpu"
        found = {"request_names": [request], "pool_name": stage.node.name, "device_name": device["name"]}
        drivers[driver].devices[uid] = [found]
    stage.create(user)
    stage.running("user")

    held = {one["device"] for one in results(stage.cluster.api.get("ResourceClaim", "near", stage.namespace))}
    everything = published | agent.devices()
    assert len(held) == 3
    assert {numa_of(everything[name]) for name in held} == {numa_of(card)}
    assert held == simulated


def offline(stage: Stage, wanted: list[dict[str, Any]], folder: Path) -> set[str]:
    """Return the devices that `simulate` gives the pod in the cluster as it is."""
    versions = {"Node": "v1", "ResourceSlice": "resource.k8s.io/v1", "DeviceClass": "resource.k8s.io/v1"}
    listed = [
        {"apiVersion": of, "kind": kind, **one} for kind, of in versions.items() for one in stage.cluster.api.list(kind)
    ]
    file = folder / "world.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [*listed, *wanted]}))
    argv = [sys.executable, "-m", "dra_driver", "simulate", "-f", str(file), "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [moment] = json.loads(done.stdout)["moments"]
    [placed] = moment["placed"]
    return set(placed["devices"])
