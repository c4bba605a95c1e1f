"""RBAC and the admission policy: an agent may do what it needs on its own node, and nothing more."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cluster.agent import ACCOUNT, DRIVER, NAMESPACE
from cluster.api import Api, Refused
from cluster.cluster import Cluster

OWN, OTHER = "node-1", "node-2"


@pytest.fixture
def agent_of_node_1(cluster: Cluster) -> Api:
    return cluster.api.as_user(cluster.node_token(OWN, ACCOUNT, NAMESPACE))


def resource_slice(
    node: str = OWN, driver: str = DRIVER, pool: str = f"{OWN}/{DRIVER}", **content: Any
) -> dict[str, Any]:
    place = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": place, **(content or {"devices": []})}
    meta = {"generateName": "permission-test-"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


COUNTERS = {"sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]}


@pytest.mark.smoke
@pytest.mark.parametrize("pool", [OWN, f"{OWN}/{DRIVER}"])
def test_an_agent_writes_slices_of_its_own_node(cluster: Cluster, agent_of_node_1: Api, pool: str) -> None:
    made = agent_of_node_1.create(resource_slice(pool=pool))
    made["spec"]["pool"]["generation"] = 2
    agent_of_node_1.replace(made)
    agent_of_node_1.delete("ResourceSlice", made["metadata"]["name"])
    assert cluster.api.find("ResourceSlice", made["metadata"]["name"]) is None


@pytest.mark.parametrize("content", [{"devices": []}, COUNTERS], ids=["devices", "only-counters"])
@pytest.mark.parametrize(
    ("foreign", "says"),
    [
        ({"node": OTHER}, f"spec.nodeName must be the agent's own node, {OWN}"),
        ({"driver": "other.example.com"}, "spec.driver must be the agent's own driver"),
        ({"pool": OTHER}, f"spec.pool.name must be {OWN} or start with {OWN}/"),
        ({"pool": f"{OTHER}/{DRIVER}"}, "spec.pool.name must be"),
        # A name that merely begins like the node's.
        ({"pool": f"{OWN}0/{DRIVER}"}, "spec.pool.name must be"),
        ({"pool": f"{OWN}0"}, "spec.pool.name must be"),
    ],
    ids=["node", "driver", "pool", "pool-of-driver", "longer-name", "longer-pool"],
)
def test_creating_changing_and_deleting_a_foreign_slice_is_refused(
    cluster: Cluster, agent_of_node_1: Api, foreign: dict[str, str], says: str, content: dict[str, Any]
) -> None:
    if content is COUNTERS and not cluster.keeps_gated:
        pytest.skip("the server drops counters without the gate")
    wanted = resource_slice(**foreign, **content)
    with pytest.raises(Refused, match="403 Forbidden") as refused:
        agent_of_node_1.create(wanted)
    assert says in str(refused.value)
    stored = cluster.api.create(wanted)
    try:
        changed = copy.deepcopy(stored)
        changed["spec"]["pool"]["generation"] = 1 << 40
        with pytest.raises(Refused, match="403 Forbidden") as refused:
            agent_of_node_1.replace(changed)
        assert says in str(refused.value)
        with pytest.raises(Refused, match="403 Forbidden") as refused:
            agent_of_node_1.delete("ResourceSlice", stored["metadata"]["name"])
        assert says in str(refused.value)
    finally:
        cluster.api.delete("ResourceSlice", stored["metadata"]["name"])


def test_a_slice_of_another_node_cannot_be_taken_over(cluster: Cluster, agent_of_node_1: Api) -> None:
    stored = cluster.api.create(resource_slice(node=OTHER, pool=f"{OTHER}/{DRIVER}"))
    try:
        taken = {**resource_slice(), "metadata": stored["metadata"]}
        with pytest.raises(Refused, match=r"422 |403 Forbidden"):
            agent_of_node_1.replace(taken)
        assert cluster.api.get("ResourceSlice", stored["metadata"]["name"])["spec"]["nodeName"] == OTHER
    finally:
        cluster.api.delete("ResourceSlice", stored["metadata"]["name"])


def test_a_slice_for_all_nodes_is_refused(agent_of_node_1: Api) -> None:
    everywhere = resource_slice()
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    with pytest.raises(Refused, match=r"403 Forbidden.*spec\.nodeName"):
        agent_of_node_1.create(everywhere)


def test_a_token_bound_to_no_node_writes_nothing(cluster: Cluster) -> None:
    path = cluster.api.path("ServiceAccount", ACCOUNT, NAMESPACE) + "/token"
    answer = cluster.api.call(
        "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    with pytest.raises(Refused, match=r"403 Forbidden.*not bound to a node"):
        cluster.api.as_user(answer["status"]["token"]).create(resource_slice())


def test_the_policy_leaves_other_drivers_alone(cluster: Cluster) -> None:
    made = cluster.api.create(resource_slice(driver="other.example.com", pool="anything"))
    cluster.api.delete("ResourceSlice", made["metadata"]["name"])


def event(kind: str = "Node", name: str = OWN, namespace: str = "default", **more: Any) -> dict[str, Any]:
    meta = {"generateName": "permission-test-", "namespace": namespace}
    involved = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name}
    if kind == "Pod":
        involved["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": involved, "reason": "It", **more}


def fault_of_pod(namespace: str = "default", **more: Any) -> dict[str, Any]:
    """Return the Event that an agent sends about a pod whose device is faulty, with other values where given."""
    signed = {"reportingComponent": DRIVER, "reportingInstance": OWN, "source": {"component": DRIVER, "host": OWN}}
    text = {"reason": "DeviceFault", "type": "Warning", "message": "device gpu-0: needs-reset"}
    return event("Pod", "it", namespace, **{**signed, **text, **more})


def test_an_agent_writes_events_about_its_own_node_and_no_other_object(cluster: Cluster, agent_of_node_1: Api) -> None:
    made = agent_of_node_1.call("POST", "/api/v1/namespaces/default/events", event())
    cluster.api.call("DELETE", f"/api/v1/namespaces/default/events/{made['metadata']['name']}")
    for wrong in (event(name=OTHER), event("Pod", OWN, "kube-system"), event("Pod", "it")):
        path = f"/api/v1/namespaces/{wrong['metadata']['namespace']}/events"
        with pytest.raises(Refused, match=f"403 Forbidden.*must be on its own node, {OWN}"):
            agent_of_node_1.call("POST", path, wrong)


def test_an_agent_writes_events_about_pods_for_faults_only_and_in_its_own_name(
    cluster: Cluster, agent_of_node_1: Api
) -> None:
    path = "/api/v1/namespaces/kube-system/events"
    for reason in ("DeviceFault", "DeviceApplicationError"):
        made = agent_of_node_1.call("POST", path, fault_of_pod("kube-system", reason=reason))
        cluster.api.call("DELETE", f"{path}/{made['metadata']['name']}")
    for wrong in (
        {"reason": "Killing"},
        {"type": "Normal"},
        {"message": "password expired, go to example.com"},
        {"reportingComponent": "kubelet"},
        {"reportingInstance": OTHER},
        {"source": {"component": DRIVER, "host": OTHER}},
        {"source": {"component": "kubelet", "host": OWN}},
        {"related": {"kind": "Secret", "name": "it"}},
        {"action": "Evict"},
    ):
        with pytest.raises(Refused, match=r"403 Forbidden.*must be on its own node"):
            agent_of_node_1.call("POST", path, fault_of_pod("kube-system", **wrong))
    labelled = fault_of_pod("kube-system")
    labelled["metadata"]["labels"] = {"of": "another"}
    with pytest.raises(Refused, match=r"403 Forbidden.*must be on its own node"):
        agent_of_node_1.call("POST", path, labelled)


ALLOWED = {
    ("resource.k8s.io", "resourceclaims"): {"get"},
    ("resource.k8s.io", "resourceslices"): {"get", "list", "watch", "create", "update", "delete"},
    ("", "nodes"): {"get"},
    ("", "events"): {"create"},
}


def rules(api: Api) -> set[tuple[str, str, str]]:
    """Return what a user may do in a namespace: API group, resource and verb."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    found = api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)["status"]["resourceRules"]
    return {
        (group, "/".join([resource, *rule.get("resourceNames", ())]), verb)
        for rule in found
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.smoke
def test_nothing_is_allowed_beyond_what_the_agent_needs(cluster: Cluster, agent_of_node_1: Api) -> None:
    path = cluster.api.path("ServiceAccount", "default", "default") + "/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    anyone = cluster.api.as_user(cluster.api.call("POST", path, request)["status"]["token"])
    # Kubernetes lets every ServiceAccount ask about itself and, from 1.37 on, read ClusterTrustBundles.
    assert {group for group, _, _ in rules(anyone)} <= {
        f"{one}.k8s.io" for one in ("authorization", "authentication", "certificates")
    }
    allowed: dict[tuple[str, str], set[str]] = {}
    for group, resource, verb in rules(agent_of_node_1) - rules(anyone):
        allowed.setdefault((group, resource), set()).add(verb)
    assert allowed == ALLOWED
