"""Evidence of clusters with one fault each, by the id of the finding that it must give."""

from __future__ import annotations

from dataclasses import replace

from dra_driver.kube.api import ServerVersion
from tests.tools.doctor.support import evidence as e
from tests.tools.doctor.support import fabric

LONG_AGO, JUST_NOW = "2026-11-21T11:50:00Z", "2026-11-21T11:59:50Z"

ADMIN = {
    "spec": {
        "devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True}}]}
    }
}

OF_TEAM_A = [{**one, "attributes": {**one["attributes"], "tenant": {"string": "team-a"}}} for one in e.DEVICES]

_TENANTS = {
    "matchConstraints": {"resourceRules": [{"resources": ["resourceclaims", "resourceclaims/status"]}]},
    "variables": [{"name": "own", "expression": 'request.namespace + ".gpu-share-mps.nvidia.com"'}],
}

GUARDED = {
    "policies": [*e.policy()["policies"], e.wire("tenants", spec=_TENANTS)],
    "bindings": [
        *e.policy()["bindings"],
        e.wire("tenants", spec={"policyName": "tenants", "validationActions": ["Deny"]}),
    ],
}

ABORTS = {"deviceClassName": "x", "selectors": [{"cel": {"expression": f'device.attributes["{e.DRIVER}"].no == 1'}}]}

LISTENS = {"env": [{"name": "METRICS_ADDRESS", "value": ":9400"}]}

METERING_AGENT = e.wire(
    "agent", "dra", {"template": e.wire("t", spec={"containers": [LISTENS]})},
    labels={"app.kubernetes.io/name": "dra-driver"},
)  # fmt: skip

EXPORTER = e.wire(
    "exporter", "gpu-operator",
    {"template": e.wire("t", spec={"containers": [{"image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.0"}]})},
)  # fmt: skip

REFERENCE = {"name": "gpu", "resourceClaimTemplateName": "one-gpus"}

ASKS = {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def on_pool(claim, pool):
    [result] = claim["status"]["allocation"]["devices"]["results"]
    return {**claim["status"], "allocation": {"devices": {"results": [{**result, "pool": pool}]}}}


FAULTY = {"key": f"{e.DRIVER}/needs-reset", "value": "gpu-reset", "effect": "NoSchedule", "timeAdded": LONG_AGO}

CORDONED = {**FAULTY, "key": f"{e.DRIVER}/cordoned", "value": ""}


def tainted(*taints):
    return e.slice_of([{**e.DEVICES[0], "taints": list(taints)}, *e.DEVICES[1:]])


CLUSTERS = {
    "health-tainted": e.cluster(
        slices=[tainted(FAULTY, {**FAULTY, "key": "other.com/x"}, {**FAULTY, "effect": "None"})]
    ),
    "health-cordoned": e.cluster(slices=[tainted(CORDONED)]),
    "slices-none": e.cluster(slices=[]),
    "slices-node-missing": e.cluster(nodes=[e.node_wire(), e.node_wire("n2", **{"nvidia.com/gpu.present": "true"})]),
    "slices-no-node": e.cluster(nodes=[e.node_wire("n2")]),
    "slices-second-driver": e.cluster(
        slices=[*e.cluster().of("slices"), e.slice_of(e.DEVICES, "s2", driver="gpu.example.com")]
    ),
    "fabric-two-channels": e.cluster(
        slices=[*fabric.slices("n1", has_channel=True), fabric.channels("n1")], nodes=fabric.NODES[:1]
    ),
    "fabric-no-channels": e.cluster(slices=fabric.slices("n1", "n2"), nodes=fabric.NODES),
    "slices-incomplete": e.cluster(slices=[e.slice_of(e.DEVICES, resourceSliceCount=2)]),
    "slices-stale": e.cluster(slices=[e.slice_of(e.DEVICES, generation=2), e.slice_of([], "old")]),
    "class-missing": e.cluster(
        claims=[e.claim_of("c", devices={"requests": [{"name": "a", "exactly": {"deviceClassName": "nope"}}]})]
    ),
    "class-no-match": e.cluster(classes=[e.class_of("x", f'device.driver == "{e.DRIVER}" && false')]),
    "class-wanted-no-match": e.cluster(
        classes=[e.class_of("x", "false")],
        claims=[e.claim_of("c", devices={"requests": [{"name": "a", "firstAvailable": [{"deviceClassName": "x"}]}]})],
    ),
    "class-broken": e.cluster(classes=[e.class_of("x", f'device.attributes["{e.DRIVER}"].nope == 1')]),
    "class-foreign": e.cluster(
        classes=[e.class_of("x", "true")],
        slices=[*e.cluster().of("slices"), e.slice_of([{"name": "nic"}], "s2", driver="nic.example.com")],
    ),
    "tenants-class": e.cluster(slices=[e.slice_of(OF_TEAM_A)], **GUARDED),
    "tenants-no-policy": e.cluster(
        slices=[e.slice_of(OF_TEAM_A)], classes=[e.class_of("team-a.x", f'device.driver == "{e.DRIVER}"')]
    ),
    "claim-finished-pod": e.cluster(
        claims=[e.claim_of("c", "gpu-0000-01-00-0", pod="p")], pods=[e.pod_of("p", "Succeeded")]
    ),
    "claim-not-prepared": e.cluster(
        claims=[e.claim_of("c", "gpu-0000-01-00-0", pod="p")],
        pods=[e.pod_of("p", "Pending", claim="c", since=LONG_AGO)],
    ),
    "claim-pool-gone": e.cluster(
        claims=[{**(c := e.claim_of("c", "gpu-0000-01-00-0", pod="p")), "status": on_pool(c, "n9/gpu.nvidia.com")}],
        pods=[e.pod_of("p")],
    ),
    "claim-selector-aborts": e.cluster(
        classes=[e.class_of("x", f'device.driver == "{e.DRIVER}"')],
        claims=[e.claim_of("c", devices={"requests": [{"name": "a", "exactly": ABORTS}]})],
    ),
    "pod-reference-missing": e.cluster(
        pods=[e.wire("p", "team", {"resourceClaims": [REFERENCE]}, {"phase": "Pending"})],
        templates=[e.wire("one-gpu", "team", {"spec": {}})],
    ),
    "pod-resource-unserved": e.cluster(pods=[e.wire("p", "team", ASKS, {"phase": "Pending"})]),
    "driver-upgrade-held": e.cluster(
        nodes=[e.node_wire(**{"nvidia.com/gpu.deploy.dra-driver": "paused-for-driver-upgrade"})],
        claims=[e.claim_of("c", "gpu-0000-01-00-0", pod="p")],
        pods=[e.pod_of("p")],
    ),
    "claim-waits": e.cluster(pods=[e.pod_of("p", "Pending", node="", claim="c")]),
    "claim-device-gone": e.cluster(claims=[e.claim_of("c", "gpu-0000-99-00-0", pod="p")], pods=[e.pod_of("p")]),
    "node-untainted": e.cluster(nodes=[e.node_wire(), e.node_wire("n2")]),
    "agent-not-ready": e.cluster(pods=[e.wire("a", "dra", labels={"app.kubernetes.io/name": "dra-driver"})]),
    "metrics-twice": e.cluster(daemonsets=[METERING_AGENT, EXPORTER]),
    "access-old-label": e.cluster(namespaces=[e.wire("team", labels={"resource.k8s.io/admin-access": "true"})]),
    "access-admin-refused": e.cluster(templates=[e.wire("t", "team", ADMIN)]),
    "access-no-policy": e.cluster(policies=[]),
    "access-policy-off": e.cluster(
        bindings=[e.wire("agents", spec={"policyName": "agents", "validationActions": ["Audit"]})]
    ),
    "access-missing-right": replace(e.cluster(), rights={"system:serviceaccount:dra:agent": ["get nodes"]}),
    "kubernetes-too-old": replace(e.cluster(), version=ServerVersion(1, 33, "v1.33.1")),
    "kubernetes-unknown-version": replace(e.cluster(), version=ServerVersion(1, 41, "v1.41.0")),
    "kubernetes-gate-off": replace(e.cluster(), kept={"DRAPartitionableDevices": False}),
    "runtime-no-cdi": e.cluster(nodes=[e.node_wire(runtime="containerd://1.6.28")]),
    "runtime-cdi-unknown": e.cluster(nodes=[e.node_wire(runtime="containerd://1.7.20")]),
}
