"""One agent on a node with 1 NVIDIA, 2 AMD and 1 Intel GPU: three drivers, and pods that use devices of all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lane.agent import Agent
from lane.cluster import REPOSITORY, Cluster
from lane.sandbox import until
from lane.stage import Stage, results
from lane.workload import container, devices, pod, request, template
from tests.support.mixed_node import MixedNode

DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
POLICY = REPOSITORY / "deploy/manifests/admission-policy.yaml"
EACH = devices(*(request(driver.split(".")[1], driver) for driver in DRIVERS))


@pytest.fixture
def mixed_agent(cluster: Cluster, start_agent: Callable[..., Agent], tmp_path: Path) -> Iterator[Agent]:
    """The agent of all three vendors, with the policy that the chart has for them."""
    listed = ", ".join(f'"{driver}"' for driver in DRIVERS)
    cluster.kubectl("apply", "-f", "-", stdin=POLICY.read_text().replace('== "gpu.nvidia.com"', f"in [{listed}]"))
    for driver in DRIVERS[1:]:
        cluster.kubectl("apply", "-f", str(REPOSITORY / f"deviceclasses/{driver}.yaml"))
    machine = MixedNode(tmp_path)
    roots = machine.roots
    places = ("--sysfs-root", roots.sys, "--proc-root", roots.proc, "--dev-root", roots.dev)
    agent = start_agent(hardware="nvidia,amd,intel", is_named=False, flags=places, environment=machine.environment)
    until("slices of all drivers", lambda: set(published(cluster, agent)) == set(DRIVERS), 60)
    yield agent
    agent.kill()
    for driver in DRIVERS[1:]:
        for name in published(cluster, agent).get(driver, ()):
            cluster.api.delete("ResourceSlice", name)
        shutil.rmtree(agent.node.plugins / driver, ignore_errors=True)
    cluster.kubectl("apply", "-f", str(POLICY))


def published(cluster: Cluster, agent: Agent) -> dict[str, list[str]]:
    """Return the names of the slices of each driver on the agent's node."""
    found: dict[str, list[str]] = {}
    for one in cluster.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={agent.node.name}"):
        found.setdefault(one["spec"]["driver"], []).append(one["metadata"]["name"])
    return found


def test_a_pod_with_a_request_for_each_vendor_sees_its_devices_and_no_others(mixed_agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "each", EACH),
        pod(
            stage.namespace,
            "user",
            container("all", "gpus"),
            container("amds", ("gpus", "amd")),
            templates={"gpus": "each"},
        ),
    )
    found = stage.check("user")
    (claim,) = stage.claims(found).values()
    assert {result["driver"] for result in results(claim)} == set(DRIVERS)
    device = next(result["device"] for result in results(claim) if result["driver"] == "gpu.amd.com")
    number = {"gpu-0000-05-00-0": 1, "gpu-0000-06-00-0": 2}[device]
    amds = {"/dev/kfd", f"/dev/dri/card{number}", f"/dev/dri/renderD{128 + number}"}
    seen = set(stage.seen("user", "all").nodes)
    assert amds | {"/dev/nvidia0", "/dev/dri/card0", "/dev/dri/renderD128"} <= seen
    assert f"/dev/dri/card{3 - number}" not in seen
    assert {node for node in stage.seen("user", "amds").nodes if "dri" in node or "kfd" in node} == amds
    stage.delete_pod("user")
    mixed_agent.wait_empty(10)
