"""Labels of nodes by NodeFeature objects: what an agent applies, and what its token can't do in any hands."""

from __future__ import annotations

import copy
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
from cluster.stage import PATIENCE

OPTION = Path(__file__).parents[3] / "deploy/manifests/options/node-features.yaml"
OTHER_NODE = "node-2"
APPLY = "application/apply-patch+yaml"
# A definition of our own that accepts what Node Feature Discovery's does: free labels and features.
ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "nodefeatures.nfd.k8s-sigs.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in of a test"},
    },
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": ANY_OBJECT}}},
            }
        ],
    },
}


@pytest.fixture
def rights(cluster: Cluster) -> Iterator[None]:
    """The kind, and the option's role and policy."""
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(DEFINITION))
    cluster.kubectl("wait", "--for=condition=Established", "crd/nodefeatures.nfd.k8s-sigs.io", "--timeout=60s")
    cluster.apply(OPTION)
    yield
    cluster.kubectl("delete", "-f", str(OPTION))
    cluster.kubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io")


@pytest.fixture
def applied(rights: None, cluster: Cluster, start_agent: Callable[..., Agent], tmp_path: Path) -> dict[str, Any]:
    """The object that an agent applied."""
    flags = ["--node-labels", "object", "--lease-namespace", NAMESPACE]
    agent = start_agent(**machine(SIMULATED, tmp_path), flags=flags)
    agent.published()
    return until("the labels are there", lambda: _found(cluster.api, agent.node.name), PATIENCE)


def test_an_agent_asks_for_the_labels_of_its_node(applied: dict[str, Any], cluster: Cluster) -> None:
    meta = applied["metadata"]
    node = meta["labels"]["nfd.node.kubernetes.io/node-name"]
    assert meta["name"] == f"{DRIVER}-{node}"
    (owner,) = meta["ownerReferences"]
    assert owner["uid"] == cluster.api.get("ServiceAccount", ACCOUNT, NAMESPACE)["metadata"]["uid"]
    assert applied["spec"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    "what", ["another node", "another name", "another label", "features", "annotations", "no node"]
)
def test_a_nodes_token_can_ask_for_no_other_labels(applied: dict[str, Any], cluster: Cluster, what: str) -> None:
    node = applied["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"]
    user = cluster.api.as_user(cluster.node_token(OTHER_NODE if what == "another node" else node, ACCOUNT, NAMESPACE))
    if what == "no node":
        path = cluster.api.path("ServiceAccount", ACCOUNT, NAMESPACE) + "/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        user = cluster.api.as_user(cluster.api.call("POST", path, body)["status"]["token"])
    wanted = copy.deepcopy({key: applied[key] for key in ("apiVersion", "kind", "spec")})
    wanted["metadata"] = {key: applied["metadata"][key] for key in ("name", "labels")}
    if what == "another name":
        wanted["metadata"]["name"] += "x"
    elif what == "another label":
        wanted["spec"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    elif what == "features":
        wanted["spec"]["features"]["flags"] = {"cpu.cpuid": {"elements": {"AVX": {}}}}
    elif what == "annotations":
        wanted["metadata"]["annotations"] = {"a": "b"}
    with pytest.raises(Refused, match=r"403 Forbidden|422 Invalid"):
        _apply(user, wanted)
    after = _found(cluster.api, node)
    assert after is not None
    assert after["spec"] == applied["spec"]


def _path(name: str) -> str:
    return f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{NAMESPACE}/nodefeatures/{name}"


def _apply(user: Api, wanted: dict[str, Any]) -> None:
    path = _path(wanted["metadata"]["name"]) + "?fieldManager=somebody&force=true"
    user.call("PATCH", path, wanted, APPLY)


def _found(api: Api, node: str) -> dict[str, Any] | None:
    try:
        return api.call("GET", _path(f"{DRIVER}-{node}"))
    except Refused:
        return None
