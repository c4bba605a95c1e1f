"""One agent on a node with 1 NVIDIA, 2 AMD and 1 Intel GPU: three drivers, and pods that use devices of all."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cluster.agent import Agent
from cluster.chart import rendered
from cluster.cluster import REPOSITORY, Cluster
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage, results
from cluster.vendors import DRIVERS, drivers_of, one_of, start
from cluster.workload import container, devices, pod, request, template
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.mixed_node import MixedNode

APU = AmdCard("0000:c1:00.0", modes=None, memory_bytes=512 << 20, host_bytes=16 << 30, bank_bytes=16 << 30, unique_id=0)
OWN_NODES = {
    "gpu.nvidia.com": "/dev/nvidia0",
    "gpu.amd.com": "/dev/kfd",
    "gpu.intel.com": "/dev/dri/renderD128",
}
EXAMPLES = REPOSITORY / "examples/vendors"
STARTS = 100 if os.environ.get("SOAK") else 24
EACH = devices(*(request(driver.split(".")[1], driver) for driver in DRIVERS))


@pytest.fixture
def machine(tmp_path: Path) -> MixedNode:
    """The trees of the node, and the stand-in for NVIDIA's library."""
    return MixedNode(tmp_path)


@pytest.fixture
def mixed_agent(start_auto: Callable[..., Agent], machine: MixedNode) -> Agent:
    """The agent of all three vendors."""
    return start_auto("nvidia,amd,intel", machine.roots, set(DRIVERS), machine.environment)


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


def test_a_claim_over_vendors_gets_devices_of_those_that_have_some_free(
    mixed_agent: Agent, cluster: Cluster, stage: Stage
) -> None:
    classes = rendered("deviceclasses.yaml", values=r"agent.hardware=nvidia\,amd\,intel")
    (any_class,) = (one for one in classes if one["metadata"]["name"] == "any-accelerator")
    either = next(
        one["spec"]["spec"]
        for one in yaml.safe_load_all((EXAMPLES / "01-first-available-of-two-vendors.yaml").read_text())
        if one["metadata"]["name"] == "nvidia-or-amd"
    )
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(any_class))
    try:
        name = any_class["metadata"]["name"]
        stage.create(template(stage.namespace, "all", devices(request("any", name, count=4))))
        stage.create(template(stage.namespace, "either", either))
        if not cluster.compares_other_devices:  # the request is for more devices than any slice has: it would crash
            start(stage, "takes-all", "all")
            assert drivers_of(stage, stage.check("takes-all")) == sorted([*DRIVERS, "gpu.amd.com"])
            stage.delete_pod("takes-all")
        for pod_name, driver in (("first", "gpu.nvidia.com"), ("second", "gpu.amd.com")):
            start(stage, pod_name, "either")
            assert drivers_of(stage, stage.check(pod_name)) == [driver]
        for pod_name in ("first", "second"):
            stage.delete_pod(pod_name)
        mixed_agent.wait_empty(10)
    finally:
        cluster.api.delete("DeviceClass", any_class["metadata"]["name"])


def test_pods_of_other_vendors_start_and_end_while_one_is_frozen(
    mixed_agent: Agent, machine: MixedNode, stage: Stage
) -> None:
    of = {driver: one_of(stage, driver) for driver in DRIVERS[1:]}
    machine.hang_nvidia()
    for number in range(3):
        for driver, name in of.items():
            start(stage, f"{name}-{number}", name)
            assert drivers_of(stage, stage.check(f"{name}-{number}", 60)) == [driver]
        for name in of.values():
            stage.delete_pod(f"{name}-{number}")
    mixed_agent.wait_empty(10)


def test_an_agent_of_several_vendors_killed_among_pod_starts_loses_no_claim(mixed_agent: Agent, stage: Stage) -> None:
    own = [(one_of(stage, driver), node) for driver, node in OWN_NODES.items()]
    for number in range(STARTS):
        name, node = own[number % len(own)]
        brief = container("main", "gpu", script=f"test -c {node}")  # a pod without its device fails
        use = {"gpu": name}
        stage.create(pod(stage.namespace, f"pod-{number}", brief, templates=use, grace=1, restartPolicy="Never"))

    def ended(count: int) -> bool:
        found = stage.cluster.api.list("Pod", stage.namespace)
        phases = [one.get("status", {}).get("phase") for one in found]
        assert "Failed" not in phases
        assert phases.count("Succeeded") >= count, phases
        return True

    for count in (STARTS // 6, STARTS // 2):
        until(f"{count} pods ended", functools.partial(ended, count), PATIENCE, every=0.05)
        mixed_agent.kill()
        mixed_agent.start()
    until("all pods ended", functools.partial(ended, STARTS), 2 * PATIENCE)
    mixed_agent.wait_empty(10)


def test_a_mode_that_is_switched_under_the_agent_leaves_running_pods_alone(
    mixed_agent: Agent, cluster: Cluster, machine: MixedNode, stage: Stage
) -> None:
    whole = one_of(stage, "gpu.amd.com", 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:05:00.0"')
    start(stage, "whole", whole)
    stage.check("whole")
    machine.divide_amd()
    until("the partitions are published", lambda: "gpu-0000-06-00-0-dpx-1" in amds(cluster, mixed_agent), 15)
    part = one_of(stage, "gpu.amd.com", 'device.attributes["gpu.amd.com"].type == "amdgpu-partition"')
    start(stage, "part", part)
    stage.check("part")
    own = {node for node in stage.seen("part").nodes if "render" in node}
    assert own in ({"/dev/dri/renderD130"}, {"/dev/dri/renderD131"})
    machine.undivide_amd()
    until("the GPU is whole again", lambda: amds(cluster, mixed_agent) == {"gpu-0000-05-00-0", "gpu-0000-06-00-0"}, 15)
    for name in ("whole", "part"):
        assert stage.running(name)
        stage.delete_pod(name)
    mixed_agent.wait_empty(10)


def test_a_laptop_whose_only_gpu_is_an_apu_gives_it_to_a_pod(
    start_auto: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> None:
    tree = AmdTree(tmp_path).write(APU)
    agent = start_auto("auto", tree.roots, {"gpu.amd.com"})
    start(stage, "user", one_of(stage, "gpu.amd.com", 'device.attributes["gpu.amd.com"].integrated'))
    stage.check("user")
    seen = {node for node in stage.seen("user").nodes if "dri" in node or "kfd" in node}
    assert seen == {"/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"}
    stage.delete_pod("user")
    agent.wait_empty(10)


def test_pods_share_an_amd_gpu_and_keep_to_different_compute_units(
    start_auto: Callable[..., Agent], cluster: Cluster, stage: Stage, tmp_path: Path
) -> None:
    (rules := tmp_path / "sharing.yaml").write_text(
        "version: rules/v1\nrules: [{match: {vendors: [amd]}, replicas: 2}]\n"
    )
    tree = AmdTree(tmp_path / "node").write(AmdCard("0000:05:00.0"))
    agent = start_auto("amd", tree.roots, {"gpu.amd.com"}, flags=("--sharing-config", str(rules)))
    cluster.kubectl("apply", "-f", str(REPOSITORY / "deviceclasses/gpu-share.amd.com.yaml"))
    parameters = {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "GpuConfig", "computeUnits": {"count": 76}}
    config = {"opaque": {"driver": "gpu.amd.com", "parameters": parameters}}
    stage.create(
        template(stage.namespace, "part", devices(request("share", "gpu-share.amd.com"), config=[config])),
        template(stage.namespace, "whole", devices(request("gpu", "gpu.amd.com"))),
    )
    try:
        for name in ("one", "two"):
            start(stage, name, "part")
            stage.check(name)
        assert {stage.seen(name).environment["HSA_CU_MASK"] for name in ("one", "two")} == {"0:0-75", "0:76-151"}
        assert all("/dev/dri/renderD128" in stage.seen(name).nodes for name in ("one", "two"))
        start(stage, "greedy", "whole")
        stage.delete_pod("one")
        start(stage, "three", "part")  # gets the share of the first one, and the claim for a GPU gets no share
        stage.check("three")
        assert stage.seen("three").environment["HSA_CU_MASK"] == "0:0-75"
        stage.pending("greedy", "cannot allocate all claims")
        for name in ("two", "three", "greedy"):
            stage.delete_pod(name)
        agent.wait_empty(10)
    finally:
        cluster.api.delete("DeviceClass", "gpu-share.amd.com")


def amds(cluster: Cluster, agent: Agent) -> set[str]:
    """Return the names of AMD's devices in the slices of the newest generation."""
    selector = f"spec.nodeName={agent.node.name},spec.driver=gpu.amd.com"
    found = cluster.api.list("ResourceSlice", fieldSelector=selector)
    newest = max((one["spec"]["pool"]["generation"] for one in found), default=0)
    current = [one for one in found if one["spec"]["pool"]["generation"] == newest]
    return {device["name"] for one in current for device in one["spec"].get("devices") or ()}
