"""The world of `explain` and `simulate`: nodes, slices, classes, claims and pods as wire objects.

In: objects, which are read or made from profiles. Out: a `World`, to which `complete` adds the objects that these
imply.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.allocation.capacity import Replica
from dra_driver.allocation.rules import GATES, gates_on
from dra_driver.base.errors import ApiError, InputError
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.base.versions import (
    COMPATIBILITY_GROUPS,
    LIST_ATTRIBUTES,
    OPTIONAL_NODE_OPERATIONS,
    Since,
    knows_gate,
    minor_of,
)
from dra_driver.base.wire import SliceWire, Wire
from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.simulator.workloads import PodTemplate, classes_by_resource
from dra_driver.tools.world.access import PROBES, VIEWER, UnseenObjects, Workload, has_field, kinds_word, pods_of
from dra_driver.tools.world.fields import bad_reference
from dra_driver.tools.world.profiles import EXISTING_PARTITIONS, FleetOffer, ProfileNodes, SliceShape, read_count
from dra_driver.tools.world.shapes import ShapeChecker

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
    home: the namespace of objects that name none.
    from_cluster: the identities of the cluster's objects, if manifests are judged against a cluster.
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
    home: str = "default"
    from_cluster: frozenset[int] = frozenset()

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
            from dra_driver.tools.world.documents import shipped_classes

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
            made = [with_defaults(pod, self.home) for pod in pods_of(template, self.objects["Node"])]
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


def with_defaults(wire: Wire, home: str = "default") -> Wire:
    """Return a claim or pod with a namespace, a name and a spec, which the API server sets if they are missing."""
    metadata = dict(wire["metadata"])
    metadata.setdefault("namespace", home)
    metadata.setdefault("name", secrets.token_hex(4))
    return {**wire, "metadata": metadata, "spec": wire.get("spec", {})}


# The rules that apply: the version of Kubernetes and its feature gates, as far as the cluster shows them.

DEFAULT_VERSION = "1.35"
DYNAMIC = "dynamic"
PARTITIONS, RESOURCES = "DRAPartitionableDevices", "DRAExtendedResource"
KNOWN_GATES = (*GATES, RESOURCES)
_FIELDS = {
    "consumesCounters": PARTITIONS,
    "taints": "DRADeviceTaints",
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "bindingConditions": "DRADeviceBindingConditions",
}
_LIST_TYPES = frozenset({"ints", "bools", "strings", "versions"})


@dataclass(frozen=True, slots=True)
class AppliedRules:
    """A version, the gates that differ from its defaults, and for each of them how that was found."""

    kubernetes: str
    gates: Mapping[str, bool]
    how: Mapping[str, str]

    @property
    def words(self) -> str:
        """Return the gates that differ from the version's defaults, and how that was found, as text."""
        differing = [f"{name} {'on' if on else 'off'} ({self.how[name]})" for name, on in sorted(self.gates.items())]
        return "; ".join(differing)

    def is_on(self, gate: str) -> bool:
        """Return whether a gate is on."""
        return gate in gates_on(self.kubernetes, self.gates)


def apply_rules(world: World, version: str | None, given: Mapping[str, bool], mig: str = DYNAMIC) -> AppliedRules:
    """Return the rules for a world, and set how the world offers simulated nodes and serves extended resources.

    Call it before simulated nodes are added, because the gates are derived from the slices of the cluster.

    Raises: UnknownVersionError.
    """
    kubernetes = version or world.kubernetes or DEFAULT_VERSION
    defaults = gates_on(kubernetes, {})
    kept = (gate for gate in _kept_by(world.of("ResourceSlice")) if knows_gate(minor_of(kubernetes), gate))
    seen = dict.fromkeys(kept, (True, "its fields are in the ResourceSlices"))
    if not version or kubernetes.startswith(world.kubernetes or " "):
        for gate, on in world.kept.items():
            seen.setdefault(gate, (on, "the API server keeps its fields" if on else "the API server drops its fields"))
    if any(map(_is_stored_with_resource, world.of("DeviceClass"))):
        seen.setdefault(RESOURCES, (True, "its field is in the DeviceClasses"))
    known = seen | {gate: (on, "--gate") for gate, on in given.items()}
    differs = {gate: row for gate, row in known.items() if row[0] != (gate in defaults) or gate in given}
    how = {gate: row[1] for gate, row in differs.items()}
    rules = AppliedRules(kubernetes, {gate: row[0] for gate, row in differs.items()}, how)
    world.serves_resources = rules.is_on(RESOURCES)
    world.serves_implicit_names = minor_of(kubernetes) >= Since.IMPLICIT_NAMES
    world.offer = offer_under(kubernetes, rules.gates, mig)
    return rules


def offer_under(kubernetes: str, gates: Mapping[str, bool], mig: str) -> FleetOffer:
    """Return how the agent offers partitions with `--mig`, a version, and gates that differ from its defaults."""
    minor = minor_of(kubernetes)
    if mig != DYNAMIC:
        return FleetOffer(False, minor, f"existing partitions only (--mig {mig})")
    if PARTITIONS in gates_on(kubernetes, gates):
        return FleetOffer(True, minor, "partitions on demand (--mig dynamic)")
    if PARTITIONS in gates:
        return FleetOffer(False, minor, f"existing partitions only, because {PARTITIONS} is off")
    words = f"existing partitions only, the default of {kubernetes} (on demand: --gate {PARTITIONS}=true)"
    return FleetOffer(False, minor, words, is_by_default=True)


def _is_stored_with_resource(wire: Wire) -> bool:
    """Return whether a class was read from a server (so it has a UID) that keeps the name of extended resources."""
    return bool(wire["metadata"].get("uid") and (wire.get("spec") or {}).get("extendedResourceName"))


def _kept_by(slices: Sequence[SliceWire]) -> set[str]:
    """Return the gates whose fields occur in slices, apart from slices of simulated nodes."""
    found: set[str] = set()
    seen: set[int] = set()
    for slice_ in slices:
        spec = slice_["spec"]
        if spec.get("sharedCounters"):
            found.add(PARTITIONS)
        if spec.get("skipNodeOperations"):
            found.add(OPTIONAL_NODE_OPERATIONS)
        devices = spec.get("devices") or ()
        if isinstance(devices, Replica):
            if devices.shape.is_simulated or id(devices.shape) in seen:
                continue
            seen.add(id(devices.shape))
            devices = devices.shape.wires
        for device in devices:
            for name in _FIELDS.keys() & device.keys():
                if device[name]:
                    found.add(_FIELDS[name])
            if any(counter.get("compatibilityGroups") for counter in device.get("consumesCounters") or ()):
                found.add(COMPATIBILITY_GROUPS)
            if any(_LIST_TYPES & value.keys() for value in (device.get("attributes") or {}).values()):
                found.add(LIST_ATTRIBUTES)
    return found


def headline(rules: AppliedRules, world: World, profiles: Sequence[str], note: str = "") -> str:
    """Return a line on the rules that apply, and on what simulated nodes offer."""
    parts = [f"rules of Kubernetes {rules.kubernetes}{note}", rules.words]
    if world.from_cluster:
        parts.append("judged on the current cluster")
    if profiles:
        parts.append(f"simulated nodes: {world.offer.words}")
        parts += world.profile_notes
    return "; ".join(part for part in parts if part)


def ask_gates(api: KubeApi, minor: int, nodes: Sequence[Wire]) -> dict[str, bool]:
    """Ask an API server which fields it keeps, by dry-run creates. Gates without an answer are left out."""
    kept = {}
    node = nodes[0]["metadata"]["name"] if nodes else "node"
    for gate, question in PROBES.items():
        path, body = question.request(NVIDIA_DRIVER, node, minor)
        try:
            kept[gate] = has_field(
                question, api.request("POST", path, body=body, query={"dryRun": "All"}, timeout_s=10.0)
            )
        except ApiError:
            continue
    return kept


# Add simulated nodes to a world.


def add_profiles(world: World, profiles: Sequence[str]) -> None:
    """Add simulated nodes, given as NAME or NAME=COUNT. Raises: InputError, UsageError."""
    taken = {node["metadata"]["name"] for node in world.objects["Node"]}
    for given in profiles:
        profile, count = read_count(given)
        simulated = ProfileNodes(profile, world.offer)
        world.profile_notes += [note for note in simulated.notes if note not in world.profile_notes]
        counts = Counter(slice_.driver for slice_ in simulated.slices)
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


# What can't be known about a cluster of which only some objects may be read.

_NEEDED = ("ResourceSlice", "DeviceClass")  # without these, no verdict is possible
_HOLDERS = frozenset({"ResourceClaim", "Pod", "ResourceClaimTemplate"})  # unseen ones can only hold more devices


def unknown_reason(world: World) -> str:
    """Return the reason why no verdict is possible; "" if one is."""
    missing = [kinds_word(kind) for kind in _NEEDED if world.is_unseen(kind)]
    return f"{' and '.join(missing)} may not be read (bind ClusterRole {VIEWER})" if missing else ""


def is_certain(world: World, *, ok: bool) -> bool:
    """Return whether a verdict would be the same if everything were seen: unseen claims can only hold more devices."""
    return not world.unseen or (not ok and all(one.kind in _HOLDERS for one in world.unseen))
