"""The condition of a Node: what an agent writes, and what its token can't do in any hands."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import ACCOUNT, NAMESPACE, Agent
from cluster.api import Api, Refused
from cluster.cluster import Cluster
from cluster.machines.faulty_machine import FAULTY, HEALTHY, FaultyMachine
from cluster.sandbox import until

OPTION = Path(__file__).parents[3] / "deploy/manifests/options/node-condition.yaml"
APPLY, MERGE = "application/apply-patch+yaml", "application/strategic-merge-patch+json"
TYPE, ASKED = "gpu.nvidia.com/DevicesHealthy", "gpu.nvidia.com/reboot-requested"
OWN, OTHER = "node-1", "node-2"
RAISED, CLEARED = 20, 60
QUIET = 15


@pytest.fixture(scope="module")
def rights(cluster: Cluster) -> Iterator[None]:
    """The option's role and policy, in force: that takes about a second after they were made."""
    cluster.apply(OPTION)
    user, path = user_of(cluster, OWN), f"{cluster.api.path('Node', OWN)}/status?dryRun=All"

    def is_in_force() -> bool:
        try:
            user.call("PATCH", path, {"metadata": {"labels": {"example.com/any": "1"}}}, MERGE)
        except Refused as refused:
            return "an agent changes no other metadata" in str(refused)
        return False

    until("the policy is in force", is_in_force, 30)
    yield
    cluster.kubectl("delete", "-f", str(OPTION))


def condition(cluster: Cluster, node: str) -> dict[str, Any]:
    """Return our condition of a node, empty if it has none."""
    listed = cluster.api.get("Node", node)["status"].get("conditions", [])
    found: dict[str, Any] = next((one for one in listed if one["type"] == TYPE), {})
    return found


def test_a_condition_of_the_node_reports_whether_its_devices_are_healthy(
    cluster: Cluster, rights: None, start_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    machine = FaultyMachine(start_agent, tmp_path, "--node-condition", "on")
    node = machine.agent.node.name
    until("all is well", lambda: condition(cluster, node).get("status") == "True", CLEARED)
    machine.set_health(0, FAULTY)
    until("a device is faulty", lambda: condition(cluster, node)["status"] == "False", RAISED)
    written = condition(cluster, node)
    assert written["reason"] == "NeedsReset"
    assert written["message"].startswith(f"{machine.name(0)}: needs-reset (gpu-reset)")
    end = time.monotonic() + QUIET
    while time.monotonic() < end:
        assert condition(cluster, node) == written, "the condition was written again though nothing changed"
        time.sleep(1)
    machine.set_health(0, HEALTHY)
    until("all is well again", lambda: condition(cluster, node)["status"] == "True", CLEARED)
    assert condition(cluster, node)["lastTransitionTime"] > written["lastTransitionTime"]


def applied_node(node: str = OWN, kind: str = TYPE) -> dict[str, Any]:
    """Return what an agent applies: a condition, and that a reboot is asked for."""
    one = {"type": kind, "status": "False", "reason": "RebootRequested", "message": "gpu-0: needs-reboot"}
    meta = {"name": node, "annotations": {ASKED: "boot"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"conditions": [one]}}


def test_a_nodes_token_writes_our_condition_and_annotation_of_its_own_node(cluster: Cluster, rights: None) -> None:
    user = user_of(cluster, OWN)
    apply(user, applied_node())
    node = cluster.api.get("Node", OWN)
    assert node["metadata"]["annotations"][ASKED] == "boot"
    assert condition(cluster, OWN)["reason"] == "RebootRequested"
    gone = applied_node()
    del gone["metadata"]["annotations"]
    gone["status"] = {}
    apply(user, gone)
    assert ASKED not in cluster.api.get("Node", OWN)["metadata"].get("annotations", {})
    assert condition(cluster, OWN) == {}


READY = {"type": "Ready", "status": "False", "reason": "Stolen"}
WRONG: dict[str, dict[str, Any]] = {
    "a condition of the kubelet's": {"status": {"conditions": [READY]}},
    "a condition of others": {"status": {"conditions": [{**READY, "type": "gpu.nvidia.com/Other"}]}},
    "a condition less": {"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}},
    "capacity": {"status": {"capacity": {"example.com/gold": "7"}}},
    "an address": {"status": {"addresses": [{"type": "Hostname", "address": "elsewhere"}]}},
    "a field of a later version": {"status": {"phase": "Terminated"}},
    "another annotation": {"metadata": {"annotations": {"example.com/any": "1"}}},
    "a label": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/stay"]}},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_nodes_token_changes_nothing_else_of_its_node(cluster: Cluster, rights: None, what: str) -> None:
    user = user_of(cluster, OWN)
    before = known(cluster, OWN)
    with pytest.raises(Refused, match=r"403 Forbidden"):
        user.call("PATCH", f"{cluster.api.path('Node', OWN)}/status", WRONG[what], MERGE)
    assert known(cluster, OWN) == before


@pytest.mark.parametrize("what", ["another node", "no node", "spec", "a new node"])
def test_a_token_writes_no_other_node_and_nothing_but_status(cluster: Cluster, rights: None, what: str) -> None:
    path = cluster.api.path("Node", OWN)
    user = user_of(cluster, OTHER if what == "another node" else OWN)
    if what == "no node":
        token = cluster.api.path("ServiceAccount", ACCOUNT, NAMESPACE) + "/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        user = cluster.api.as_user(cluster.api.call("POST", token, body)["status"]["token"])
    request: tuple[Any, ...] = ("PATCH", f"{path}/status?fieldManager=it&force=true", applied_node(), APPLY)
    if what == "spec":
        request = ("PATCH", path, {"spec": {"unschedulable": True}}, MERGE)
    elif what == "a new node":
        request = ("POST", cluster.api.path("Node"), applied_node("node-9"))
    before = known(cluster, OWN)
    with pytest.raises(Refused, match=r"403 Forbidden"):
        user.call(*request)
    assert known(cluster, OWN) == before


def user_of(cluster: Cluster, node: str) -> Api:
    return cluster.api.as_user(cluster.node_token(node, ACCOUNT, NAMESPACE))


def apply(user: Api, node: dict[str, Any]) -> None:
    query = "?fieldManager=dra-driver%20gpu.nvidia.com%20node&force=true"
    user.call("PATCH", f"{user.path('Node', node['metadata']['name'])}/status{query}", node, APPLY)


def known(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a node without what its kubelet changes by itself."""
    node = copy.deepcopy(cluster.api.get("Node", name))
    for one in node["status"].get("conditions", []):
        one.pop("lastHeartbeatTime", None)
    node["metadata"].pop("resourceVersion")
    node["metadata"].pop("managedFields", None)
    return node
