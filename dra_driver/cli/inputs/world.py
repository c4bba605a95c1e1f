"""The world of `explain` and `simulate`: nodes, slices, classes, claims and pods, from files, profiles or a cluster.

In: paths, profile names with counts, a kubeconfig. Out: a `World` of wire objects. It only reads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.cli.inputs.progress import Progress
from dra_driver.cli.inputs.shapes import ShapeChecker
from dra_driver.documents.shared_values import SharedValues
from dra_driver.kube import paths
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

_PAGE = "500"
_PATHS = {
    "Node": paths.NODES,
    "Pod": paths.PODS,
    "ResourceSlice": paths.SLICES,
    "DeviceClass": paths.CLASSES,
    "ResourceClaim": paths.CLAIMS,
    "ResourceClaimTemplate": paths.TEMPLATES,
}


@dataclass(slots=True)
class World:
    """Objects by kind. `kubernetes` is the cluster's version, "" for files."""

    objects: dict[str, list[Wire]] = field(default_factory=lambda: {kind: [] for kind in _PATHS})
    kubernetes: str = ""

    def of(self, kind: str) -> list[Wire]:
        """Return the objects of one kind."""
        return self.objects[kind]

    def find(self, kind: str, namespace: str, name: str) -> Wire | None:
        """Return one object; in files, the namespace may be missing."""
        for wire in self.objects[kind]:
            metadata = wire["metadata"]
            if metadata["name"] == name and metadata.get("namespace", namespace) == namespace:
                return wire
        return None

    def allocated(self) -> list[Wire]:
        """Return the claims that have an allocation."""
        return [c for c in self.objects["ResourceClaim"] if (c.get("status") or {}).get("allocation")]

    def complete(self) -> None:
        """Add the nodes that slices refer to, and the shipped classes, unless they are already present."""
        known = {node["metadata"]["name"] for node in self.objects["Node"]}
        for one in self.objects["ResourceSlice"]:
            name = one["spec"].get("nodeName")
            if name and name not in known:
                known.add(name)
                self.objects["Node"].append(bare_node(name))
        classes = {one["metadata"]["name"] for one in self.objects["DeviceClass"]}
        if not self.kubernetes:
            from dra_driver.cli.inputs.classes import shipped_classes

            self.objects["DeviceClass"] += [c.wire for c in shipped_classes() if c.name not in classes]


def bare_node(name: str) -> Wire:
    """Make a minimal node with the name that a slice refers to."""
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def world_of_files(paths: Sequence[str]) -> World:
    """Read all objects of some files. Raises: InputError."""
    from dra_driver.cli.inputs.documents import read_documents, shown

    world, checker = World(), ShapeChecker()
    for document in read_documents(paths):
        if document.kind in world.objects:
            checker.check(document.kind, document.wire, shown(document.origin))
            wire = _with_defaults(document.wire) if document.kind in {"ResourceClaim", "Pod"} else document.wire
            world.objects[document.kind].append(wire)
    for wire in world.objects["ResourceClaim"]:
        default_requests(wire.get("spec") or {})
    for wire in world.objects["ResourceClaimTemplate"]:
        default_requests((wire.get("spec") or {}).get("spec") or {})
    return world


def add_profiles(world: World, profiles: Sequence[str]) -> None:
    """Add simulated nodes, given as NAME or NAME=COUNT. Raises: InputError, UsageError."""
    from dra_driver.allocation.replicas import Replica
    from dra_driver.cli.inputs.profile_nodes import ProfileNodes, read_count

    taken = {node["metadata"]["name"] for node in world.objects["Node"]}
    for given in profiles:
        name, count = read_count(given)
        simulated = ProfileNodes(name)
        for number in range(1, count + 1):
            node = _free_name(simulated.name_of(number), taken)
            taken.add(node)
            world.objects["Node"].append(bare_node(node))
            for shape in simulated.shapes:
                devices = Replica(shape, node) if count > 1 else list(shape.on(node))
                world.objects["ResourceSlice"].append(_slice(node, shape.driver, devices))


def _free_name(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


def _slice(node: str, driver: str, devices: Sequence[Wire]) -> Wire:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def world_of_cluster(kubeconfig: str | None) -> World:
    """Read everything from a cluster. Raises: ApiError."""
    from dra_driver.kube.api import KubeApi
    from dra_driver.kube.credentials import load

    api = KubeApi(load(kubeconfig))
    try:
        version = api.server_version()
        return World({kind: _list(api, kind) for kind in _PATHS}, f"{version.major}.{version.minor}")
    finally:
        api.close()


def _list(api: Any, kind: str) -> list[Wire]:
    """List all objects of a kind, page by page; values that their devices share are kept once."""
    found: list[Wire] = []
    token = ""
    line, values, checker = Progress(f"{kind}s read"), SharedValues(), ShapeChecker()
    try:
        while True:
            query = {"limit": _PAGE, **({"continue": token} if token else {})}
            answer = api.request("GET", _PATHS[kind], query=query, timeout_s=30.0)
            items = answer.get("items") or []
            for wire in items:
                if kind == "ResourceSlice":
                    values.share(wire)
                checker.check(kind, wire, "cluster")
            found += items
            line.tell(len(found))
            token = (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return found
    finally:
        line.close()


def pod_claims(world: World, pod: Wire) -> list[Wire]:
    """Return a pod's claims; those that a template would create are made here.

    Raises:
        InputError: A claim or template is missing.
    """
    namespace = pod["metadata"].get("namespace") or "default"
    made = {
        one["name"]: one.get("resourceClaimName")
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    claims = []
    for wanted in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = made.get(wanted["name"]) or wanted.get("resourceClaimName")
        if name:
            claims.append(_found(world, "ResourceClaim", namespace, name, wanted))
            continue
        template = _found(
            world, "ResourceClaimTemplate", namespace, wanted.get("resourceClaimTemplateName", ""), wanted
        )
        metadata = {"name": f"{pod['metadata']['name']}-{wanted['name']}", "namespace": namespace}
        claims.append({"kind": "ResourceClaim", "metadata": metadata, "spec": template["spec"]["spec"]})
    return claims


def _found(world: World, kind: str, namespace: str, name: str, wanted: Wire) -> Wire:
    found = world.find(kind, namespace, name)
    if found is None:
        raise InputError(
            "missing", f"claim {wanted['name']} of the pod needs {kind} {namespace}/{name}, which is missing"
        )
    return found


def _with_defaults(wire: Wire) -> Wire:
    metadata = dict(wire["metadata"])
    metadata.setdefault("namespace", "default")
    metadata.setdefault("name", secrets.token_hex(4))
    return {**wire, "metadata": metadata}


def default_requests(spec: Mapping[str, Any]) -> None:
    """Set the defaults that the API server would set in a hand-written claim."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if one is not None:
                one.setdefault("allocationMode", "ExactCount")
                if one["allocationMode"] == "ExactCount":
                    one.setdefault("count", 1)
