"""The status of claims: what an agent writes, and what its token can't do in any hands."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.agent import ACCOUNT, DRIVER, NAMESPACE, Agent
from cluster.api import Api, Refused
from cluster.cluster import Cluster
from cluster.machines.hardware import SIMULATED, machine
from cluster.sandbox import until
from cluster.stage import PATIENCE, Stage
from cluster.workload import claim, container, devices, pod, request

OPTION = Path(__file__).parents[3] / "deploy/manifests/options/claim-status.yaml"
APPLY = "application/apply-patch+yaml"
OTHER_NODE = "node-2"
K8S = os.environ.get("K8S", "1.35")


@pytest.fixture
def rights(cluster: Cluster) -> Iterator[None]:
    """The option's role and policy; they are in force before a pod runs."""
    cluster.apply(OPTION)
    yield
    cluster.kubectl("delete", "--ignore-not-found", "-f", str(OPTION))


@pytest.fixture
def prepared(
    rights: None, start_agent: Callable[..., Agent], stage: Stage, tmp_path: Path
) -> tuple[Agent, dict[str, Any]]:
    """An agent that writes statuses, and a claim that a pod of its node uses."""
    agent = start_agent(**machine(SIMULATED, tmp_path), flags=["--claim-status", "on"])
    agent.published()
    stage.create(
        claim(stage.namespace, "one", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "gpu"), claims={"gpu": "one"}),
    )
    stage.running("user")
    return agent, until("the status is written", lambda: _written(stage), PATIENCE)


def test_the_status_of_a_running_pods_claim_describes_its_device(
    prepared: tuple[Agent, dict[str, Any]], stage: Stage
) -> None:
    agent, found = prepared
    (entry,) = found["status"]["devices"]
    (allocated,) = found["status"]["allocation"]["devices"]["results"]
    assert (entry["driver"], entry["pool"], entry["device"]) == (DRIVER, allocated["pool"], allocated["device"])
    assert entry["data"]["uuid"] == agent.devices()[entry["device"]]["attributes"]["uuid"]["string"]
    assert {c["type"]: c["status"] for c in entry["conditions"]} == {"Ready": "True", "Healthy": "True"}
    stage.delete_pod("user")
    agent.wait_empty(1)
    until("the entry ends with the allocation", lambda: not _written(stage) or None, PATIENCE)


@pytest.mark.parametrize("what", ["another node", "another driver", "allocation", "reservation", "no node"])
def test_a_nodes_token_changes_nothing_else_in_the_status_of_claims(
    prepared: tuple[Agent, dict[str, Any]], cluster: Cluster, stage: Stage, what: str
) -> None:
    agent, found = prepared
    node = OTHER_NODE if what == "another node" else agent.node.name
    user = cluster.api.as_user(cluster.node_token(node, ACCOUNT, NAMESPACE))
    if what == "no node":
        path = cluster.api.path("ServiceAccount", ACCOUNT, NAMESPACE) + "/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        user = cluster.api.as_user(cluster.api.call("POST", path, body)["status"]["token"])
    changed = copy.deepcopy(found)
    status: dict[str, Any] = {}
    if what in {"another node", "no node"}:
        entry = copy.deepcopy(changed["status"]["devices"][0])
        status["devices"] = [{**entry, "data": {"uuid": "stolen"}}]
    elif what == "another driver":
        status["devices"] = [{**changed["status"]["devices"][0], "driver": "other.example.com"}]
    elif what == "allocation":
        status["allocation"] = None
    else:
        status["reservedFor"] = []
    with pytest.raises(Refused, match=r"403 Forbidden|422 Invalid"):
        _merge(user, stage, {"status": status})
    after = cluster.api.get("ResourceClaim", "one", stage.namespace)
    assert after["status"]["allocation"] == found["status"]["allocation"]
    assert after["status"]["reservedFor"] == found["status"]["reservedFor"]
    assert after["status"]["devices"] == found["status"]["devices"]


@pytest.mark.skipif(K8S < "1.36", reason="the API server checks nodes and drivers itself from 1.36 on")
def test_from_1_36_on_the_servers_own_check_limits_a_token_to_its_node_and_driver(
    prepared: tuple[Agent, dict[str, Any]], cluster: Cluster, stage: Stage
) -> None:
    """The role alone, without the option's policy."""
    agent, found = prepared
    (policy,) = (one for one in yaml.safe_load_all(OPTION.read_text()) if one["kind"].endswith("PolicyBinding"))
    cluster.kubectl("delete", "validatingadmissionpolicybinding", policy["metadata"]["name"])
    tokens = {name: cluster.node_token(name, ACCOUNT, NAMESPACE) for name in (agent.node.name, OTHER_NODE)}
    own, other = (cluster.api.as_user(tokens[name]) for name in (agent.node.name, OTHER_NODE))
    (entry,) = found["status"]["devices"]
    changed = {"status": {"devices": [{**entry, "data": {"uuid": "changed"}}]}}

    _merge(own, stage, changed)
    for user, status in ((other, {"devices": [entry]}), (own, {"reservedFor": []}), (own, {"allocation": None})):
        with pytest.raises(Refused, match=r'requires resource="resourceclaims/(driver|binding)"'):
            _merge(user, stage, {"status": status})


def _merge(user: Api, stage: Stage, change: dict[str, Any]) -> None:
    path = stage.cluster.api.path("ResourceClaim", "one", stage.namespace) + "/status"
    user.call("PATCH", path, change, "application/merge-patch+json")


def _written(stage: Stage) -> dict[str, Any] | None:
    found = stage.cluster.api.get("ResourceClaim", "one", stage.namespace)
    return found if found.get("status", {}).get("devices") else None
