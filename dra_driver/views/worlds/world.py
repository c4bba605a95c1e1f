"""The world of `explain` and `simulate`: nodes, slices, classes, claims and pods, from files, profiles or a cluster.

In: paths, profile names with counts, a kubeconfig. Out: a `World` of wire objects. It only reads.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.documents.shared_values import SharedValues
from dra_driver.embedded.scheduling.pod_templates import PodTemplate
from dra_driver.embedded.scheduling.workloads import classes_by_resource
from dra_driver.kube import paths
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.fleet.profile_nodes import AS_THEY_STAND, FleetOffer, SliceShape
from dra_driver.views.objects.documents import read_documents
from dra_driver.views.objects.shapes import ShapeChecker
from dra_driver.views.objects.strictness import checked, refuse_unknown
from dra_driver.views.progress import NoProgress, ProgressLines
from dra_driver.views.worlds.rules import ask_gates
from dra_driver.views.worlds.workloads import Workload, add_workload, pods_of

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
    """Objects by kind. `kubernetes` is the cluster's version, "" for files.

    `templates` are those of workloads whose pods `complete` adds, and then notes in `workloads`. `strangers` are
    objects that nobody here understands, `without_devices` pods that ask for none, `idle` says what makes or keeps no
    pods. `makers` names, by namespace and
    name, what makes a ResourceClaimTemplate that is not there. `kept` says of gates whether the API server keeps their
    fields. `offer` says how simulated nodes offer partitions; with `serves_resources`, classes serve extended
    resources.
    """

    objects: dict[str, list[Wire]] = field(default_factory=lambda: {kind: [] for kind in _PATHS})
    kubernetes: str = ""
    templates: list[PodTemplate] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    without_devices: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    makers: dict[tuple[str, str], str] = field(default_factory=dict)
    kept: dict[str, bool] = field(default_factory=dict)
    classes_by_resource: dict[str, str] = field(default_factory=dict)
    offer: FleetOffer = AS_THEY_STAND
    profile_notes: list[str] = field(default_factory=list)
    serves_resources: bool = False

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

    def refuse_strangers(self) -> None:
        """Raise an error that names the objects which nobody here understands, if there are any. Raises: InputError."""
        if self.strangers:
            raise InputError(
                "not-understood",
                f"not judged, because no pod template is known in it: {', '.join(self.strangers[:20])}",
                hint="give the pods that it makes (kubectl get pods -o yaml) beside it",
            )

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
            from dra_driver.views.objects.classes import shipped_classes

            self.objects["DeviceClass"] += [c.wire for c in shipped_classes() if c.name not in classes]
        if self.serves_resources:
            self.classes_by_resource = classes_by_resource(self.objects["DeviceClass"])
        self.add_pods()

    def add_pods(self) -> None:
        """Add the pods of workloads, those of a DaemonSet for each node that they may go to."""
        checker = ShapeChecker()
        for template in self.templates:
            made = [_with_defaults(pod) for pod in pods_of(template, self.objects["Node"])]
            for pod in made:
                checker.check("Pod", pod, f"{template.kind} {template.name}")
            self.objects["Pod"] += made
            workload = Workload(template, tuple(made))
            self.workloads.append(workload)
            self.idle += [workload.idle] if workload.idle else []
        self.templates.clear()


def bare_node(name: str) -> Wire:
    """Make a minimal node with the name that a slice refers to."""
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def world_of_files(paths: Sequence[str]) -> World:
    """Read all objects of some files. Raises: InputError."""
    world, checker = World(), ShapeChecker()
    for document in read_documents(paths):
        if document.kind in world.objects:
            wire = checked(document, checker)
            if document.kind in {"ResourceClaim", "Pod"}:
                wire = _with_defaults(wire)
            world.objects[document.kind].append(wire)
        else:
            refuse_unknown(document, document.wire)
            add_workload(world, document.wire, document.name)
    for wire in world.objects["ResourceClaim"]:
        default_requests(wire.get("spec") or {})
    for wire in world.objects["ResourceClaimTemplate"]:
        default_requests((wire.get("spec") or {}).get("spec") or {})
    return world


def add_profiles(world: World, profiles: Sequence[str]) -> None:
    """Add simulated nodes, given as NAME or NAME=COUNT. Raises: InputError, UsageError."""
    from dra_driver.allocation.pools.replicas import Replica
    from dra_driver.views.fleet.profile_nodes import ProfileNodes, read_count

    taken = {node["metadata"]["name"] for node in world.objects["Node"]}
    for given in profiles:
        profile, count = read_count(given)
        simulated = ProfileNodes(profile, world.offer)
        world.profile_notes += [note for note in simulated.notes if note not in world.profile_notes]
        counts = Counter(one.driver for one in simulated.slices)
        for node in simulated.free_names(count, taken):
            taken.add(node)
            world.objects["Node"].append(bare_node(node))
            for place, one in enumerate(simulated.slices):
                devices: Sequence[Wire] = ()
                if one.shape is not None:
                    devices = Replica(one.shape, node) if count > 1 else list(one.shape.on(node))
                name = f"{node}-{one.driver}-{place}" if counts[one.driver] > 1 else f"{node}-{one.driver}"
                made = _slice(name, node, one, devices, counts[one.driver])
                world.objects["ResourceSlice"].append(made)


def _slice(name: str, node: str, one: SliceShape, devices: Sequence[Wire], count: int) -> Wire:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    spec: Wire = {"driver": one.driver, "nodeName": node, "pool": pool}
    if devices:
        spec["devices"] = devices
    if one.counter_sets:
        spec["sharedCounters"] = list(one.counter_sets)
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def world_of_cluster(kubeconfig: str | None, lines: ProgressLines = NoProgress) -> World:
    """Read everything from a cluster. Raises: ApiError."""
    from dra_driver.kube.api import KubeApi
    from dra_driver.kube.credentials import load

    api = KubeApi(load(kubeconfig))
    try:
        version = api.server_version()
        world = World({kind: _list(api, kind, lines) for kind in _PATHS}, f"{version.major}.{version.minor}")
        world.kept = ask_gates(api, version.minor, world.of("Node"))
        return world
    finally:
        api.close()


def _list(api: Any, kind: str, lines: ProgressLines) -> list[Wire]:
    """List all objects of a kind, page by page; values that their devices share are kept once."""
    found: list[Wire] = []
    token = ""
    line, values, checker = lines(f"{kind}s read", 0), SharedValues(), ShapeChecker()
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
