"""Manifests of the device plugin, migrated: the real API server accepts them, and the real scheduler places their pods.

The pods are bound to nodes without a kubelet: these have the devices of a fleet profile, the labels of GPU feature
discovery that some pods still name, and the taints for which tolerations are added. Workloads of Kubernetes are run by
their controllers; for kinds without a controller here, the pods are made from the templates in the migrated objects.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Object, Refused
from cluster.cluster import REPOSITORY, Cluster
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import claim, devices, request
from dra_driver.tools.migrate.pods import shapes_of
from dra_driver.tools.migrate.report import objects_of
from dra_driver.tools.world.fleet import fleet_of_profile
from tests.support.migrate_shapes import SHAPES, migrated

DRIVER = "gpu.nvidia.com"
GROUP = "resource.k8s.io/v1"
NODES = {f"gpu-{number}": "nvidia.com/gpu" for number in range(16)}
NODES |= {"mig-1": "nvidia.com/mig-1g.10gb", "shared-1": "nvidia.com/gpu.shared", "plain-1": ""}
LABELS = {
    "fleet": "migrated",
    "kubernetes.io/os": "linux",
    "topology.kubernetes.io/zone": "b",
    "zone": "a",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/mig.strategy": "mixed",
}
SHARE_CLASS = "gpu-share.nvidia.com"
RUNTIME = "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: runc}"
WORKLOADS = "deployments,statefulsets,daemonsets,replicasets,jobs,cronjobs"
BUILT_IN = {"v1", "apps/v1", "batch/v1", GROUP}


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[None]:
    """Nodes with devices, labels and taints, and a class for shares where none is deployed."""
    made: list[Object] = []
    try:
        for name, taint in NODES.items():
            made += [_node(name, taint), *([_slice(name)] if taint else [])]
        if cluster.api.find("DeviceClass", SHARE_CLASS) is None:
            of_class = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu-share"'
            spec = {"selectors": [{"cel": {"expression": of_class}}]}
            made.append({"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": SHARE_CLASS}, "spec": spec})
        for one in made:
            cluster.api.create(one)
        cluster.kubectl("apply", "-f", "-", stdin=RUNTIME)
        yield
    finally:
        for one in made:
            cluster.api.delete(one["kind"], one["metadata"]["name"])
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=RUNTIME)


def _node(name: str, taint: str) -> Object:
    room = {"cpu": "64", "memory": "64Gi", "pods": "1000"}
    taints = [{"key": taint, "effect": "NoSchedule", "value": "present"}] if taint else []
    meta = {"name": name, "labels": {**LABELS, "kubernetes.io/hostname": name}}
    status = {"capacity": room, "allocatable": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": taints}, "status": status}


def _slice(node: str) -> Object:
    """Return a slice with the devices of a node that `demo-h100` describes, and shares of one more GPU."""
    found = [one.wire for one in fleet_of_profile("demo-h100").devices if one.driver == DRIVER]
    whole = next(one for one in found if one["attributes"]["type"]["string"] == "gpu")
    for number in range(4):
        attributes = {
            **whole["attributes"],
            "type": {"string": "gpu-share"},
            "sharingStrategy": {"string": "MPS"},
            "replicas": {"int": 10},
        }
        found.append({"name": f"gpu-share-{number}", "attributes": attributes, "capacity": whole["capacity"]})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": found}
    return {"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": {"name": f"{node}-migrate"}, "spec": spec}


@pytest.fixture
def custom_kinds(cluster: Cluster) -> Iterator[None]:
    """Definitions, without schemas, of the kinds among the shapes that Kubernetes does not have."""
    kinds = {
        (wire["apiVersion"], wire["kind"])
        for shape in SHAPES
        for wire in yaml.safe_load_all(shape.read_text())
        if wire and wire["apiVersion"] not in BUILT_IN
    }
    definitions = [_definition(*one) for one in sorted(kinds)]
    text = "---\n".join(map(yaml.safe_dump, definitions))
    try:
        cluster.kubectl("apply", "-f", "-", stdin=text)
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", "-", stdin=text, timeout=90)
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text)


def _definition(version: str, kind: str) -> Object:
    group, _, name = version.partition("/")
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
        "versions": [{"name": name, "served": True, "storage": True, "schema": schema}],
    }
    meta: dict[str, Any] = {"name": f"{plural}.{group}"}
    if group.endswith("k8s.io"):
        meta["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}


def test_every_migrated_shape_is_accepted_and_its_pods_are_scheduled(
    stage: Stage, fleet: None, custom_kinds: None
) -> None:
    try:
        _apply_and_schedule(stage)
    finally:
        _clean(stage)


def _clean(stage: Stage) -> None:
    """Delete the workloads, then their pods by force, because on nodes without a kubelet no pod ends."""
    stage.cluster.kubectl("delete", WORKLOADS, "--all", "-n", stage.namespace, "--wait=false")

    def gone() -> bool:
        stage.cluster.kubectl("delete", "pods", "--all", "-n", stage.namespace, "--force", "--grace-period=0")
        return not stage.cluster.api.list("Pod", stage.namespace)

    until("every pod of the workloads gone", gone, 60)


def _apply_and_schedule(stage: Stage) -> None:
    api, namespace = stage.cluster.api, stage.namespace
    expected: dict[str, int] = {}
    for shape in SHAPES:
        text = re.sub(r"(?m)^(\s+\"?namespace\"?: ).*", rf"\g<1>{namespace}", migrated(shape).new)
        wires = [wire for wire in yaml.safe_load_all(text) if wire]
        quotas = [wire for wire in wires if wire["kind"] == "ResourceQuota"]
        verb = "create" if "generateName" in text else "apply"
        dry = ["--dry-run=server"] if quotas else []  # quotas in force would block the other shapes
        said = stage.cluster.kubectl(verb, "-n", namespace, *dry, "-f", "-", stdin=text)
        assert len(said.splitlines()) == sum(len(list(objects_of(wire))) for wire in wires), said
        for number, (pod, wanted) in enumerate(_pods(wires, namespace)):
            name = f"{shape.stem}-{number}"
            if api.find("Pod", pod["metadata"]["name"], namespace) is None:
                pod["metadata"]["name"] = name
                pod["spec"]["nodeSelector"] = {**pod["spec"].get("nodeSelector", {}), "fleet": "migrated"}
                api.create(pod)
            expected[pod["metadata"]["name"]] = wanted
    assert len(expected) >= 30
    bound = _scheduled(stage, expected)
    claims = api.list("ResourceClaim", namespace)
    for name, wanted in expected.items():
        held = [one for one in claims if one["metadata"]["ownerReferences"][0]["name"] == name]
        results = [row for one in held for row in one["status"]["allocation"]["devices"]["results"]]
        assert len(results) == wanted, (name, held)
    taints = {name: NODES[node] for name, node in bound.items() if node in NODES}
    assert {taints[name] for name, wanted in expected.items() if wanted and name in taints} == set(NODES.values()) - {
        ""
    }


def _pods(wires: list[Object], namespace: str) -> Iterator[tuple[Object, int]]:
    """Return the pods of objects, and how many devices each claims."""
    templates = {}
    listed = [one.wire for wire in wires for one in objects_of(wire)]
    for wire in listed:
        if wire["kind"] == "ResourceClaimTemplate":
            rows = wire["spec"]["spec"]["devices"]["requests"]
            templates[wire["metadata"]["name"]] = sum(row["exactly"].get("count", 1) for row in rows)
    for wire in listed:
        for shape in shapes_of(wire):
            spec = _spec(shape)
            used = [row["resourceClaimTemplateName"] for row in spec.get("resourceClaims", ())]
            own = wire["metadata"].get("name") if wire["kind"] == "Pod" else ""
            meta = {"name": own or "made", "namespace": namespace}
            yield (
                {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec},
                sum(templates[one] for one in used),
            )


def _spec(shape: Any) -> Object:
    """Return the pod spec that the object's controller would make."""
    spec = json.loads(json.dumps(shape.spec))
    patch = yaml.safe_load(spec.get("podSpecPatch") or "{}")
    fields = ("nodeSelector", "affinity", "tolerations", "resourceClaims", "runtimeClassName", "initContainers")
    made = {field: spec[field] for field in fields if field in spec and field != "runtimeClassName"} | patch
    own = [json.loads(json.dumps(one.wire)) for one in shape.containers if "initContainers" not in one.path]
    made["containers"] = [{"image": "registry.example.com/none:1", **one} for one in own]
    for number, one in enumerate(made["containers"]):
        one.setdefault("name", f"container-{number}")
        for field in ("modelFormat", "storageUri", "source"):
            one.pop(field, None)
    return {**made, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}


def _scheduled(stage: Stage, names: dict[str, int]) -> dict[str, str]:
    """Wait until all pods have a node, and return the nodes."""

    def look() -> dict[str, str] | None:
        found = {one["metadata"]["name"]: one for one in stage.cluster.api.list("Pod", stage.namespace)}
        waiting = {
            name: [row.get("message") for row in one.get("status", {}).get("conditions", ())]
            for name, one in found.items()
            if not one["spec"].get("nodeName")
        }
        assert not waiting, waiting
        owners = {one["kind"] for pod in found.values() for one in pod["metadata"].get("ownerReferences", ())}
        assert owners >= {"ReplicaSet", "StatefulSet", "DaemonSet", "Job"}, f"no pods yet of all controllers: {owners}"
        return {name: found[name]["spec"]["nodeName"] for name in names}

    found = until("all pods have a node", look, 120, every=0.5)
    assert found is not None
    return found


def test_a_migrated_quota_counts_the_devices_of_claims(stage: Stage) -> None:
    api = stage.cluster.api
    (shape,) = [one for one in SHAPES if one.stem == "20-quota"]
    stage.cluster.kubectl("apply", "-n", stage.namespace, "-f", "-", stdin=migrated(shape).new)
    hard = api.get("ResourceQuota", "team-a", stage.namespace)["spec"]["hard"]
    assert hard[f"{DRIVER}.deviceclass.resource.k8s.io/devices"] == "8"
    # The cluster has no quota controller, so its result for no use at all is written here.
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
    api.patch("ResourceQuota", "team-a", stage.namespace, status, "status")

    def refused() -> bool:
        try:
            api.create(claim(stage.namespace, "nine", devices(request("gpus", count=9))), dryRun="All")
        except Refused as refusal:
            return "exceeded quota: team-a" in str(refusal)
        return False

    until("the quota is in force", refused, 30)
    api.create(claim(stage.namespace, "eight", devices(request("gpus", count=8))))
    api.delete("ResourceQuota", "team-a", stage.namespace)


TRAIN = """
# Ask the team.
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: NAMESPACE}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
  containers:
  - name: main
    image: registry.example.com/none:1
    resources: {limits: {nvidia.com/gpu: COUNT}}
"""


def _migrate(cluster: Cluster, folder: Path, text: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
    (folder / "train.yaml").write_text(text)
    command = [sys.executable, "-m", "dra_driver", "migrate", str(folder / "train.yaml"), "--cluster"]
    surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(kubeconfig or cluster.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
    return done.returncode, done.stdout, " ".join(done.stderr.split())


def test_selectors_are_tried_on_the_live_cluster_and_names_that_are_taken_are_avoided(
    cluster: Cluster, stage: Stage, fleet: None, tmp_path: Path
) -> None:
    text = TRAIN.replace("NAMESPACE", stage.namespace)
    taken = {"devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "elsewhere"}}]}}
    meta = {"name": "train-gpu", "namespace": stage.namespace}
    cluster.api.create(
        {"apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": taken}}
    )
    status, made, said = _migrate(cluster, tmp_path, text.replace("COUNT", "1"))
    assert status == 0, said
    assert "name: train-gpu-2" in made
    assert "# Ask the team." in made
    with_devices = sum(1 for taint in NODES.values() if taint)
    assert re.search(rf"train-gpu-2, request gpu: this selector matches [0-9]+ devices on {with_devices} nodes", said)
    # The API server accepts what the command wrote, and a second run finds its own template.
    cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=made)
    (tmp_path / "made.yaml").write_text(made)
    status, again, _ = _migrate(cluster, tmp_path, made)
    assert (status, again) == (0, made)
    status, _, said = _migrate(cluster, tmp_path, text.replace("COUNT", "31"))
    assert (status, "no node has the 31 that the request wants" in said) == (1, True)
    cluster.kubectl("delete", "resourceclaimtemplates", "--all", "-n", stage.namespace)


def test_a_cluster_that_refuses_the_token_is_an_error_of_the_environment(cluster: Cluster, tmp_path: Path) -> None:
    nobody = cluster.authority.kubeconfig("nobody", "wrong", cluster.api.server)
    status, made, said = _migrate(cluster, tmp_path, TRAIN.replace("COUNT", "1"), nobody)
    assert (status, made) == (5, "")
    assert "api." in said
