"""The world of `explain` and `simulate`: nodes, slices, classes, claims and pods as wire objects.

In: objects, which `reading` and `simulated_nodes` add. Out: a `World`, to which `complete` adds the objects that these
imply.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from dra_driver.embedded.scheduling.pod_templates import PodTemplate
from dra_driver.embedded.scheduling.workloads import classes_by_resource
from dra_driver.kube import paths
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.access import UnseenObjects
from dra_driver.views.fleet.profile_nodes import EXISTING_PARTITIONS, FleetOffer
from dra_driver.views.objects.pod_references import bad_reference
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.worlds.workload_pods import Workload, pods_of

PATHS = {
    "Node": paths.NODES,
    "Pod": paths.PODS,
    "ResourceSlice": paths.SLICES,
    "DeviceClass": paths.CLASSES,
    "ResourceClaim": paths.CLAIMS,
    "ResourceClaimTemplate": paths.TEMPLATES,
}


@dataclass(slots=True)
class World:
    """Objects by kind, and what is known beside them.

    kubernetes: the cluster's version, "" for files.
    templates: pod templates of workloads. `complete` makes pods of them, and moves them to `workloads`.
    unknown_objects: objects that may make pods, but not by a known pod template.
    without_devices: pods that ask for no device.
    idle: sentences about workloads without pods, and about pods that are being deleted.
    makers: what makes a ResourceClaimTemplate that does not exist yet, by its namespace and name.
    kept: whether the API server keeps the fields of a gate.
    offer: how simulated nodes offer partitions.
    serves_resources: whether classes serve extended resources.
    serves_implicit_names: whether a class then serves its implicit name, too, as from Kubernetes 1.35 on.
    unseen: what may not be read of the cluster.
    """

    objects: dict[str, list[Wire]] = field(default_factory=lambda: {kind: [] for kind in PATHS})
    kubernetes: str = ""
    templates: list[PodTemplate] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    unknown_objects: list[str] = field(default_factory=list)
    without_devices: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    makers: dict[tuple[str, str], str] = field(default_factory=dict)
    kept: dict[str, bool] = field(default_factory=dict)
    classes_by_resource: dict[str, str] = field(default_factory=dict)
    offer: FleetOffer = EXISTING_PARTITIONS
    profile_notes: list[str] = field(default_factory=list)
    serves_resources: bool = False
    serves_implicit_names: bool = True
    unseen: list[UnseenObjects] = field(default_factory=list)

    def of(self, kind: str) -> list[Wire]:
        """Return the objects of one kind."""
        return self.objects[kind]

    def find(self, kind: str, namespace: str, name: str) -> Wire | None:
        """Return one object, or None; an object of a file without a namespace is found in any namespace."""
        for wire in self.objects[kind]:
            metadata = wire["metadata"]
            if metadata["name"] == name and metadata.get("namespace", namespace) == namespace:
                return wire
        return None

    def allocated(self) -> list[Wire]:
        """Return the claims that have an allocation."""
        return [c for c in self.objects["ResourceClaim"] if (c.get("status") or {}).get("allocation")]

    def is_unseen(self, kind: str, namespace: str = "") -> bool:
        """Return whether objects of a kind, in a namespace if it has them, could not be read."""
        return any(
            one.kind == kind and (not one.scope or (one.scope != namespace) is one.is_partial) for one in self.unseen
        )

    def refuse_unknown_objects(self) -> None:
        """Refuse a world with objects that are not understood, by their names. Raises: InputError."""
        if self.unknown_objects:
            raise InputError(
                "not-understood",
                f"not judged, because their pod templates are not known: {', '.join(self.unknown_objects[:20])}",
                hint="add the pods that such an object makes (kubectl get pods -o yaml) to the files",
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
            self.classes_by_resource = classes_by_resource(
                self.objects["DeviceClass"], with_implicit=self.serves_implicit_names
            )
        self.add_pods()

    def add_pods(self) -> None:
        """Add the pods of workloads, those of a DaemonSet for each node that they may go to."""
        checker = ShapeChecker()
        for template in self.templates:
            made = [with_defaults(pod) for pod in pods_of(template, self.objects["Node"])]
            for pod in made:
                checker.check("Pod", pod, f"{template.kind} {template.name}")
                if fault := bad_reference(pod, f"{template.kind} {template.name}: pod"):
                    raise fault
            self.objects["Pod"] += made
            workload = Workload(template, tuple(made))
            self.workloads.append(workload)
            self.idle += [workload.idle] if workload.idle else []
        self.templates.clear()


def bare_node(name: str) -> Wire:
    """Return a minimal node with a name, such as one that a slice refers to."""
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def with_defaults(wire: Wire) -> Wire:
    """Return a claim or pod with a namespace, a name and a spec, which the API server sets if they are missing."""
    metadata = dict(wire["metadata"])
    metadata.setdefault("namespace", "default")
    metadata.setdefault("name", secrets.token_hex(4))
    return {**wire, "metadata": metadata, "spec": wire.get("spec", {})}
