"""GPUs that claims of another driver, or of another version of this one, still hold: taken over with running pods."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import pytest

from cluster import workload
from cluster.agent import ACCOUNT, DRIVER, NAMESPACE, Agent
from cluster.cluster import Cluster
from cluster.drivers import other_version
from cluster.drivers.other_driver import OtherDriver
from cluster.sandbox import until
from cluster.stage import Stage
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import Device

GPU = workload.devices(workload.request("gpu"))
LOOK = 100  # in seconds; the agent checks once a minute


@pytest.fixture
def other(stage: Stage) -> Iterator[OtherDriver]:
    started = OtherDriver(stage)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    """What our agent would publish if it had the node to itself."""
    return list(build_inventory(SimulatedHardware("demo-h100", Roots(), node_name="node-1").discover()).devices)


def foreign_name(device: Device) -> str:
    """Return a device's name as NVIDIA's driver would choose it."""
    part = device.partition
    if part is None:
        return f"gpu-{device.gpu.minor}"
    profile = part.profile.replace(".", "").replace("+", "-")
    return f"gpu-{device.gpu.minor}-mig-{profile}-{part.gi_profile_id}-{part.start}"


STATIC = ["--mig=static"]


def other_agent(what: str) -> list[str]:
    """Return the command line of another version's stand-in; empty for this tree's own agent."""
    return [sys.executable, str(other_version.__file__), what] if what else []


def names(agent: Agent) -> set[str]:
    return set(agent.devices())


def reasons(stage: Stage) -> set[str]:
    """Return the reasons of the Events about the node."""
    events = stage.cluster.api.list("Event", "default", fieldSelector="involvedObject.name=node-1")
    return {event["reason"] for event in events}


def start_user(stage: Stage, name: str) -> None:
    stage.create(workload.pod(stage.namespace, name, workload.container("main", "gpu"), templates={"gpu": "one"}))


def test_nvidias_driver_is_left_alone_while_it_runs_and_then_taken_over_from_with_running_pods(
    stage: Stage, start_agent: Callable[..., Agent], other: OtherDriver, devices: list[Device]
) -> None:
    whole = next(device for device in devices if device.partition is None)
    part = next(device for device in devices if device.partition is not None)
    free = [device for device in devices if device.partition is None][1]
    other.publish([foreign_name(device) for device in (whole, part, free)])
    other.run("on-gpu", foreign_name(whole))
    other.run("on-part", foreign_name(part))

    # Beside the other driver nothing is published or deleted, and the kubelet goes on calling the other one.
    agent = start_agent(flags=STATIC)
    for problem in ('{code="node.namesake"} 1.0', '{code="node.foreign-claim"} 2.0'):
        until(problem, lambda text=problem: f"dra_driver_problems{text}" in agent.ask("/metrics"), 20)
    assert [found["metadata"]["name"] for found in agent.slices()] == ["node-1-other"]
    until("an Event", lambda: "AnotherDriverRegistered" in reasons(stage), 20)
    other.run("on-free", foreign_name(free))
    stage.delete_pod("on-free")
    for file in other.node.cdi.glob("*.yaml"):  # as the other driver itself would
        if f"-{foreign_name(free)}\n" in file.read_text():
            file.unlink()

    # The other driver is gone: free devices are published, those that its pods hold are not, and the pods keep running.
    other.stop()
    held = {whole.name, part.name}
    until("the free devices", lambda: names(agent) == {d.name for d in devices} - held, 60)
    assert {found["spec"]["pool"]["name"] for found in agent.slices()} == {f"node-1/{DRIVER}"}
    for pod in ("on-gpu", "on-part"):
        assert all(status["restartCount"] == 0 for status in stage.running(pod)["status"]["containerStatuses"])
    stage.create(workload.template(stage.namespace, "one", GPU))
    start_user(stage, "later")
    stage.running("later")

    # Its pods end: the kubelet calls our Unprepare, which removes what it finds, and then the devices are offered.
    for pod in ("on-gpu", "on-part"):
        stage.delete_pod(pod)
    assert list(stage.node.cdi.glob("*.yaml")) == []
    until("every device", lambda: names(agent) == {d.name for d in devices}, LOOK)
    assert agent.metric("dra_driver_problems") == 0
    for pod in ("on-gpu", "on-part"):
        stage.cluster.api.delete("ResourceClaim", pod, stage.namespace)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("renamed", ""), id="old names", marks=pytest.mark.soak),
        pytest.param(("", "renamed"), id="new names"),
    ],
)
def test_a_gpu_held_under_another_versions_name_is_published_once_its_pod_has_ended(
    stage: Stage, start_agent: Callable[..., Agent], order: tuple[str, str]
) -> None:
    before = start_agent(program=other_agent(order[0]), flags=STATIC, pod_uid="before-00000000000000")
    before.published()
    stage.create(workload.template(stage.namespace, "one", GPU))
    start_user(stage, "user")
    (held,) = stage.devices(stage.running("user"))
    after = start_agent(program=other_agent(order[1]), flags=STATIC, pod_uid="after-000000000000000")
    count = len(names(before))
    before.stop()
    until("the other names", lambda: held not in names(after), 30)
    renamed = held.replace("card-", "gpu-") if order[0] else held.replace("gpu-", "card-")
    until("all but the held one", lambda: len(names(after)) == count - 1 and renamed not in names(after), 10)
    stage.running("user")
    start_user(stage, "other")
    assert stage.devices(stage.running("other")) != [renamed]
    stage.delete_pod("user")
    until("the device under its new name", lambda: renamed in names(after), LOOK)


@pytest.mark.parametrize("order", [("newer-ledger", ""), ("", "newer-ledger")], ids=["downgrade", "upgrade"])
def test_versions_with_different_ledgers_run_side_by_side_and_undo_each_others_claims(
    stage: Stage, start_agent: Callable[..., Agent], order: tuple[str, str], cluster: Cluster
) -> None:
    first = start_agent(program=other_agent(order[0]), flags=STATIC, pod_uid="first-000000000000000")
    first.published()
    stage.create(workload.template(stage.namespace, "one", GPU))
    start_user(stage, "one-of-first")
    stage.check("one-of-first")
    second = start_agent(program=other_agent(order[1]), flags=STATIC, pod_uid="second-00000000000000")
    start_user(stage, "one-of-both")
    stage.check("one-of-both")
    stage.delete_pod("one-of-first")
    started = time.monotonic()
    first.stop()
    start_user(stage, "one-of-second")
    stage.check("one-of-second")
    assert time.monotonic() - started < 60
    # And back again, while the second agent still runs.
    first.start()
    second.stop()
    for pod in ("one-of-both", "one-of-second"):
        stage.delete_pod(pod)
    until("an empty ledger", lambda: first.ledger_rows() == [], 10)


LISTED = ["--takeover-list-claims=true"]


@pytest.fixture
def may_list(cluster: Cluster) -> Iterator[None]:
    """The right that `takeover.listClaims` adds to the role of the agents."""
    kind, role = {"apiVersion": "rbac.authorization.k8s.io/v1"}, {"name": "may-list-claims"}
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["list"]}]
    cluster.api.create({**kind, "kind": "ClusterRole", "metadata": role, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **role}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    binding = {"kind": "ClusterRoleBinding", "metadata": role, "roleRef": reference, "subjects": [subject]}
    cluster.api.create({**kind, **binding})
    yield
    cluster.api.delete("ClusterRoleBinding", role["name"])
    cluster.api.delete("ClusterRole", role["name"])


def test_claims_of_nvidias_driver_that_were_never_prepared_count_only_where_claims_are_listed(
    stage: Stage, start_agent: Callable[..., Agent], devices: list[Device], may_list: None
) -> None:
    api, namespace = stage.cluster.api, stage.namespace
    api.patch("Namespace", namespace, "", {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    whole, seen, *_ = (device for device in devices if device.partition is None)
    part = next(device for device in devices if device.partition)
    place = part.partition
    older = f"gpu-{part.gpu.minor}-mig-{place.gi_profile_id}-{place.start}-{place.size}"
    held = {"one": foreign_name(whole), "two": foreign_name(whole), "older": older, "lost": "gpu-77"}
    free = {"monitor": foreign_name(seen), "passthrough": "gpu-vfio-3"}
    for name, device in (held | free).items():
        admin = {"adminAccess": True} if name == "monitor" else {}
        spec = workload.devices(workload.request("gpu", **admin))
        stage.create(workload.claim(namespace, name, spec))
        result = {"request": "gpu", "driver": DRIVER, "pool": stage.node.name, "device": device, **admin}
        allocated = {"status": {"allocation": {"devices": {"results": [result]}}}}
        api.patch("ResourceClaim", name, namespace, allocated, "status")

    agent = start_agent(flags=[*STATIC, *LISTED])
    everything = {device.name for device in devices}
    until("all but what is held", lambda: names(agent) == everything - {whole.name, part.name}, 30)
    found = agent.ask("/metrics")
    assert 'dra_driver_problems{code="node.foreign-claim"} 3.0' in found
    # A claim is deleted while the agent is down.
    agent.stop()
    api.delete("ResourceClaim", "one", namespace)
    agent.start()
    until(
        "the second claim's device is still withheld", lambda: names(agent) == everything - {whole.name, part.name}, 30
    )
    agent.stop()
    # No driver can prepare them any more, so an agent that asks only its kubelet has no reason to wait.
    agent = start_agent(flags=STATIC)
    until("every device", lambda: names(agent) == everything, 30)
    assert agent.metric("dra_driver_problems") == 0
    for name in held.keys() - {"one"}:
        api.delete("ResourceClaim", name, namespace)


def test_a_start_lists_no_claims_and_a_lost_ledger_gets_its_claims_names_from_the_kubelet(
    stage: Stage, start_agent: Callable[..., Agent]
) -> None:
    before = len(stage.cluster.audited("list", "watch", resource="resourceclaims"))
    agent = start_agent(flags=STATIC)
    agent.published()
    stage.create(workload.template(stage.namespace, "one", GPU))
    start_user(stage, "user")
    stage.check("user")
    rows = {row[0] for row in agent.ledger_rows()}
    agent.stop()
    for file in agent.data.glob("ledger.db*"):
        file.unlink()
    agent.start()
    until("the claim's own name in the ledger", lambda: stage.namespace in str(agent.ledger_rows()), LOOK)
    assert {row[0] for row in agent.ledger_rows()} == rows
    assert "recovered claim found" in agent.daemon.tail(200)
    stage.delete_pod("user")
    until("an empty ledger", lambda: agent.ledger_rows() == [], 10)
    assert len(stage.cluster.audited("list", "watch", resource="resourceclaims")) == before
    assert stage.cluster.audited("get", resource="resourceclaims"), "the audit log has requests for claims"
