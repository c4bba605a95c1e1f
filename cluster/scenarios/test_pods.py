"""Pods use their claims: the allocation, the claims of the kubelet, the CDI files and the containers agree."""

from __future__ import annotations

import pytest

from cluster.agent import Agent
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage, results
from cluster.workload import claim, container, devices, pod, request, template

ONE_GPU = devices(request("gpu"))


@pytest.mark.smoke
def test_one_pod_with_a_claim_template_sees_its_device(either_agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    found = stage.check("user")
    assert len(stage.devices(found)) == 1
    # `check` compares what the container sees with what CDI promises; check here that CDI promises something.
    seen = stage.seen("user")
    assert seen.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {"/dev/nvidiactl"} < set(seen.nodes)
    if "nvidia" in either_agent.daemon.argv:
        assert any("/libcuda.so." in path for path in seen.mounts), "no driver library is mounted"
    stage.delete_pod("user")
    # Gone as soon as the pod is, because the kubelet reports the end only after Unprepare.
    either_agent.wait_empty(1)


def test_two_containers_share_one_device(either_agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "user", container("a", "gpu"), container("b", "gpu"), templates={"gpu": "one-gpu"}),
    )
    assert len(stage.devices(stage.check("user"))) == 1
    assert stage.seen("user", "a").nodes == stage.seen("user", "b").nodes


def test_each_container_sees_only_the_request_it_names(agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "two-gpus", devices(request("left"), request("right"))),
        pod(
            stage.namespace,
            "user",
            container("a", ("gpus", "left")),
            container("b", ("gpus", "right")),
            container("both", "gpus"),
            templates={"gpus": "two-gpus"},
        ),
    )
    assert len(set(stage.devices(stage.check("user")))) == 2
    left, right, both = (set(stage.seen("user", name).nodes) for name in ("a", "b", "both"))
    assert left - right, "container a has no device node that b has not"
    assert right - left, "container b has no device node that a has not"
    assert left | right == both


def test_two_pods_share_one_claim(either_agent: Agent, stage: Stage) -> None:
    stage.create(claim(stage.namespace, "shared", ONE_GPU))
    for name in ("first", "second"):
        stage.create(pod(stage.namespace, name, container("main", "gpu"), claims={"gpu": "shared"}))
    devices_seen = [stage.devices(stage.check(name)) for name in ("first", "second")]
    assert devices_seen[0] == devices_seen[1]
    stage.delete_pod("first")
    # The other pod still uses the claim, so nothing is removed.
    stage.check("second")
    assert len(either_agent.cdi_files()) == 1
    stage.delete_pod("second")
    either_agent.wait_empty(1)


def test_pods_queue_for_the_last_gpu(agent: Agent, stage: Stage) -> None:
    last = max(name for name, it in agent.devices().items() if it["attributes"]["type"]["string"] == "gpu")
    uuid = agent.devices()[last]["attributes"]["uuid"]["string"]
    only = f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'
    stage.create(template(stage.namespace, "last-gpu", devices(request("gpu", selector=only))))
    queued = {"first", "second", "third"}
    for name in queued:
        stage.create(pod(stage.namespace, name, container("main", "gpu"), templates={"gpu": "last-gpu"}))
    while queued:
        (name,) = until("the next pod runs", lambda: _running(stage, queued), PATIENCE)
        assert stage.devices(stage.check(name)) == [last]
        for other in queued - {name}:
            stage.pending(other, "cannot allocate all claims")
        stage.delete_pod(name)
        queued.remove(name)


def test_a_claim_is_used_again_by_the_next_pod(agent: Agent, stage: Stage) -> None:
    stage.create(claim(stage.namespace, "kept", ONE_GPU))
    for name in ("first", "second"):
        stage.create(pod(stage.namespace, name, container("main", "gpu"), claims={"gpu": "kept"}))
        stage.check(name)
        stage.delete_pod(name)
        agent.wait_empty(5)
    kept = stage.cluster.api.wait("ResourceClaim", "kept", stage.namespace, "deallocated", lambda it: not results(it))
    assert not kept.get("status", {}).get("reservedFor")


def _running(stage: Stage, names: set[str]) -> list[str]:
    found = stage.cluster.api.list("Pod", stage.namespace, fieldSelector="status.phase=Running")
    running = [it["metadata"]["name"] for it in found if it["metadata"]["name"] in names]
    assert len(running) < 2, "two pods have the device at one time"
    return running
