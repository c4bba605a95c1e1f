"""The real state of a pod, by its own conditions and container statuses, in `claims` and in `explain`."""

from __future__ import annotations

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS, SLICES
from dra_driver.tools.main import run
from tests.support.api.embedded_client import slice_wire

PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nvcr.io/typo"'}
CRASH = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
KILLED = {"exitCode": 137, "reason": "OOMKilled"}
CREATING = {"reason": "ContainerCreating"}


@pytest.fixture
def cluster(tmp_path):
    with EmbeddedApi() as api:
        yield api, str(api.write_kubeconfig(tmp_path / "kubeconfig"))


def add_pod(api, phase, state):
    """Add a claim with a device, and a pod on node n1 that uses it."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
    claim = api.request("POST", CLAIMS.path("default"), body={"metadata": {"name": "c"}, "spec": spec})
    spec = {
        "nodeName": "n1",
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
    }
    pod = api.request("POST", PODS.path("default"), body={"metadata": {"name": "p"}, "spec": spec})
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
    api.request("PUT", f"{PODS.path('default', 'p')}/status", body=pod)
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "a"}
    user = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    api.request("PUT", f"{CLAIMS.path('default', 'c')}/status", body=claim)


def answer(capsys, *words):
    status = run(list(words))
    return status, " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("phase", "state", "told"),
    [
        ("Pending", {"waiting": PULL}, f"container main: ImagePullBackOff: {PULL['message']}"),
        ("Running", {"waiting": CRASH}, f"container main: CrashLoopBackOff: {CRASH['message']}"),
        ("Running", {"terminated": KILLED}, "container main: OOMKilled (exit code 137)"),
    ],
)
def test_what_keeps_a_container_from_running_is_told_by_both_commands(cluster, capsys, phase, state, told):
    api, kubeconfig = cluster
    add_pod(api, phase, state)
    _, out = answer(capsys, "claims", "--kubeconfig", kubeconfig)
    assert f"p {phase} ! {told}" in out
    assert "not prepared" not in out
    status, out = answer(capsys, "explain", "pod", "p", "--kubeconfig", kubeconfig)
    assert f"pod p is {phase} on node n1: {told}; it holds a" in out
    assert status == ExitCode.OK


def test_a_pod_whose_container_is_being_created_may_wait_for_its_devices(cluster, capsys):
    api, kubeconfig = cluster
    add_pod(api, "Pending", {"waiting": CREATING})
    _, out = answer(capsys, "claims", "--kubeconfig", kubeconfig)
    assert "p Pending ! its devices are not prepared yet" in out
    status, out = answer(capsys, "explain", "pod", "p", "--kubeconfig", kubeconfig)
    assert "has not prepared its devices yet" in out
    assert status == ExitCode.NO_MATCH


def test_a_pod_that_runs_is_told_without_trouble(cluster, capsys):
    api, kubeconfig = cluster
    add_pod(api, "Running", {"running": {}})
    _, out = answer(capsys, "claims", "--kubeconfig", kubeconfig)
    assert "p Running" in out
    assert "!" not in out.partition("p Running")[2]
    _, out = answer(capsys, "explain", "pod", "p", "--kubeconfig", kubeconfig)
    assert "pod p runs on node n1 and holds a" in out


@pytest.mark.parametrize(
    ("by", "group"), [("namespace", "default 1 claim"), ("node", "n1 1 claim"), ("state", "in use 1 claim")]
)
def test_claims_are_drawn_in_groups(cluster, capsys, by, group):
    api, kubeconfig = cluster
    add_pod(api, "Running", {"running": {}})
    wire = slice_wire(devices=[{"name": "a"}])
    wire["spec"]["pool"]["name"] = "n1"
    api.request("POST", SLICES.path(), body=wire)
    _, out = answer(capsys, "claims", "--kubeconfig", kubeconfig, "--by", by)
    assert f"ResourceClaims └── {group} └── default/c" in out


@pytest.mark.parametrize(("resource", "is_listed"), [("example.com/gpu", True), ("other.com/gpu", False)])
def test_a_pod_that_waits_for_an_extended_resource_of_a_class_follows_the_claims(cluster, capsys, resource, is_listed):
    api, kubeconfig = cluster
    body = {"metadata": {"name": "any"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    api.request("POST", CLASSES.path(), body=body)
    container = {"name": "main", "resources": {"limits": {resource: "1"}}}
    pod = api.request(
        "POST", PODS.path("default"), body={"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    )
    unfit = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    pod["status"] = {"phase": "Pending", "conditions": [unfit]}
    api.request("PUT", f"{PODS.path('default', 'p')}/status", body=pod)
    _, out = answer(capsys, "claims", "--kubeconfig", kubeconfig)
    assert ("pod default/p waits for example.com/gpu: 0/1 nodes are available" in out) is is_listed
