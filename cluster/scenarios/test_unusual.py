"""Claims that users write and developers don't think of: odd shapes, odd moments, two drivers."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from cluster.agent import Agent
from cluster.sandbox import NotInTime, until
from cluster.stage import PATIENCE, Stage, results
from cluster.workload import SHOW, STAY, claim, container, devices, pod, request, template
from tests.support.plugin.stand_in_plugin import StandInPlugin

ONE_GPU = devices(request("gpu"))
SECOND = "second.example.com"


@pytest.fixture
def second(stage: Stage) -> Iterator[StandInPlugin]:
    """Another driver on the stage's node: one card, a class for it, and a plugin whose answers the scenario sets."""
    api, name = stage.cluster.api, f"{stage.namespace}.example.com"
    chosen = {"selectors": [{"cel": {"expression": f'device.driver == "{SECOND}"'}}]}
    pool = {"name": stage.node.name, "generation": 1, "resourceSliceCount": 1}
    card = {"driver": SECOND, "nodeName": stage.node.name, "pool": pool, "devices": [{"name": "card-0"}]}
    for kind, spec in (("DeviceClass", chosen), ("ResourceSlice", card)):
        api.create({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    plugin = StandInPlugin(stage.node.kubelet_root, SECOND).start()
    until("the kubelet has found the second driver", lambda: plugin.statuses, 20)
    yield plugin
    for kind in ("Pod", "ResourceClaim"):
        api.call("DELETE", api.path(kind, namespace=stage.namespace))
    until("its claims are gone", lambda: not api.list("ResourceClaim", stage.namespace), PATIENCE)
    plugin.stop()
    for kind in ("DeviceClass", "ResourceSlice"):
        api.delete(kind, name)


def test_init_containers_and_containers_see_the_same_device(agent: Agent, stage: Stage) -> None:
    first = container("first", "gpu", script=SHOW)
    sidecar = container("sidecar", "gpu") | {"restartPolicy": "Always"}
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(
            stage.namespace,
            "user",
            container("main", "gpu"),
            templates={"gpu": "one-gpu"},
            initContainers=[first, sidecar],
        ),
    )
    stage.check("user")
    seen = [stage.seen("user", name).nodes for name in ("first", "sidecar", "main")]
    assert seen[0] == seen[1] == seen[2]


def test_a_container_that_crashes_again_and_again_keeps_its_device(agent: Agent, stage: Stage) -> None:
    crashing = container("main", "gpu", script=f"{SHOW} sleep 1; exit 3")
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "user", crashing, templates={"gpu": "one-gpu"}, restartPolicy="Always"),
    )

    def restarts() -> int:
        status = stage.cluster.api.get("Pod", "user", stage.namespace).get("status", {})
        return sum(it["restartCount"] for it in status.get("containerStatuses", []))

    until("two restarts", lambda: restarts() > 1, PATIENCE)
    (file,) = agent.cdi_files()
    (device,) = stage.devices(stage.cluster.api.get("Pod", "user", stage.namespace))
    stage.delete_pod("user")
    assert not file.exists()
    assert device in agent.devices()


def test_a_pod_with_three_claims_and_one_with_eight_devices(agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        claim(stage.namespace, "kept", devices(request("a"), request("b"))),
        pod(
            stage.namespace,
            "three",
            container("main", "first", "second", ("kept", "b")),
            container("other", ("kept", "a")),
            claims={"kept": "kept"},
            templates={"first": "one-gpu", "second": "one-gpu"},
        ),
    )
    assert len(set(stage.devices(stage.check("three")))) == 4
    stage.delete_pod("three")
    every = devices(request("gpus", count=6), request("parts", "mig.nvidia.com", count=2))
    stage.create(
        template(stage.namespace, "eight", every),
        pod(stage.namespace, "eight", container("main", "all"), templates={"all": "eight"}),
    )
    assert len(set(stage.devices(stage.check("eight")))) == 8


def test_one_claim_holds_devices_of_two_drivers(agent: Agent, stage: Stage, second: StandInPlugin) -> None:
    kind = f"{stage.namespace}.example.com"
    stage.create(claim(stage.namespace, "both", devices(request("gpu"), request("card", kind))))
    uid = stage.cluster.api.get("ResourceClaim", "both", stage.namespace)["metadata"]["uid"]
    second.devices[uid] = [{"request_names": ["card"], "pool_name": stage.node.name, "device_name": "card-0"}]
    stage.create(pod(stage.namespace, "user", container("main", "both"), claims={"both": "both"}))
    held = stage.claims(stage.check("user"))["both"]
    assert {result["driver"] for result in results(held)} == {agent.driver, SECOND}
    (file,) = agent.cdi_files()
    assert "card-0" not in file.read_text()


def test_a_claim_that_the_other_driver_can_not_prepare_leaves_nothing_of_ours(
    agent: Agent, stage: Stage, second: StandInPlugin
) -> None:
    kind = f"{stage.namespace}.example.com"
    stage.create(claim(stage.namespace, "both", devices(request("gpu"), request("card", kind))))
    uid = stage.cluster.api.get("ResourceClaim", "both", stage.namespace)["metadata"]["uid"]
    second.errors[uid] = "out of cards"
    stage.create(pod(stage.namespace, "user", container("main", "both"), claims={"both": "both"}))
    until("the pod is told why", lambda: "out of cards" in "".join(stage.events("user")), 30)
    second.errors.clear()
    stage.delete_pod("user")
    agent.wait_empty(60)


def test_an_agent_with_a_driver_name_that_the_policy_does_not_allow_reports_the_refusal(
    agent: Agent, stage: Stage
) -> None:
    other = Agent(stage.cluster, stage.node, driver=SECOND)
    try:
        with pytest.raises(NotInTime, match="no slices published yet"):
            other.start(10)
        assert "spec.driver must be the agent's own driver" in other.daemon.tail(200)
        assert other.slices() == []
        # The pod with the right name is not disturbed.
        stage.create(
            template(stage.namespace, "one-gpu", ONE_GPU),
            pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
        )
        stage.check("user")
    finally:
        other.stop()
    assert other.sockets() == []


def test_a_second_agent_with_the_nodes_name_and_other_folders_withdraws_and_names_the_first(
    agent: Agent, stage: Stage
) -> None:
    names, elsewhere = set(agent.devices()), stage.node.base / "e"
    places = {"--kubelet-plugins-directory-path": "p", "--kubelet-registrar-directory-path": "r", "--cdi-root": "c"}
    flags = [word for flag, name in places.items() for word in (flag, str(elsewhere / name))]
    other = Agent(stage.cluster, stage.node, hardware="simulated:dgx-h100", flags=flags)
    try:
        with pytest.raises(NotInTime, match=f"folder {agent.data}"):
            other.start(30)
        assert "api.another-agent" in other.daemon.tail(200)
        until("the first agent's devices", lambda: set(agent.devices()) == names, 30)
        until("the first agent is ready", lambda: agent.ask("/readyz").startswith("ok"), 30)
        stage.create(
            template(stage.namespace, "one-gpu", ONE_GPU),
            pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
        )
        stage.check("user")
    finally:
        other.stop()
    assert set(agent.devices()) == names


def test_a_claim_deleted_while_its_pod_is_pending_takes_nothing(agent: Agent, stage: Stage) -> None:
    too_much = devices(request("gpus", count=20))
    stage.create(
        claim(stage.namespace, "wanted", too_much),
        pod(stage.namespace, "user", container("main", "gpus"), claims={"gpus": "wanted"}),
    )
    stage.pending("user", "cannot allocate all claims")
    stage.cluster.api.delete("ResourceClaim", "wanted", stage.namespace)
    stage.cluster.api.wait_gone("ResourceClaim", "wanted", stage.namespace)
    # With a claim of the same name that can be allocated, the same pod runs.
    stage.create(claim(stage.namespace, "wanted", ONE_GPU))
    stage.check("user")


def test_a_kubelet_restarted_while_prepare_waits_starts_the_pod(agent: Agent, stage: Stage) -> None:
    agent.kill()
    stage.create(
        template(stage.namespace, "one-gpu", ONE_GPU),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    claim_of = functools.partial(stage.cluster.api.list, "ResourceClaim", stage.namespace)
    until("the claim is allocated", lambda: [it for it in claim_of() if results(it)], 30)
    stage.restart_kubelet()
    agent.start()
    agent.published()
    stage.check("user")


def test_a_drained_node_ends_its_pods_and_takes_new_ones_after(agent: Agent, stage: Stage) -> None:
    stage.create(template(stage.namespace, "one-gpu", ONE_GPU))
    for name in ("first", "second"):
        stage.create(pod(stage.namespace, name, container("main", "gpu"), templates={"gpu": "one-gpu"}))
        stage.check(name)
    stage.cluster.kubectl("drain", stage.node.name, "--force", "--timeout=60s", "--pod-selector=app!=none")
    agent.wait_empty(5)
    assert agent.slices(), "a drained node still has its devices"
    stage.create(pod(stage.namespace, "later", container("main", "gpu"), templates={"gpu": "one-gpu"}))
    stage.pending("later", "unschedulable")
    stage.cluster.kubectl("uncordon", stage.node.name)
    stage.check("later")


def test_a_pod_of_another_namespace_gets_a_claim_of_its_own(agent: Agent, stage: Stage) -> None:
    other = f"{stage.namespace}-other"
    stage.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    try:
        stage.cluster.api.wait("ServiceAccount", "default", other, "made", lambda _: True)
        there = Stage(stage.cluster, stage.node, other)
        for place in (stage, there):
            place.create(
                template(place.namespace, "one-gpu", ONE_GPU),
                pod(place.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
            )
        taken = [place.devices(place.check("user")) for place in (stage, there)]
        assert taken[0] != taken[1]
        there.delete_pod("user")
        stage.compare("user")
    finally:
        stage.cluster.api.delete("Namespace", other)


def test_a_long_claim_name_and_an_odd_request_name_reach_the_container(agent: Agent, stage: Stage) -> None:
    name = "c" * 40 + "." + "d" * 60 + ".e"
    stage.create(
        claim(stage.namespace, name, devices(request("r" * 63))),
        pod(stage.namespace, "user", container("main", ("gpu", "r" * 63), script=SHOW + STAY), claims={"gpu": name}),
    )
    assert len(stage.devices(stage.check("user"))) == 1
