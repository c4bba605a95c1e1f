"""Pods of a world: the claims of each, and its phase.

In: a `World` and a pod of it. Out: the pod's claims, including those that the cluster would make from templates; a name
for people; whether the pod runs. It is an error if something that a pod refers to is missing; the error suggests the
most similar name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dra_driver.base.errors import ApiError, InputError
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import Wire
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.paths import EVENTS, WORKLOADS, named, within
from dra_driver.simulator.workloads import IMPLICIT, templates_of, with_claim
from dra_driver.tools.world.access import ClusterAccess, NoProgress, ProgressLines, Workload
from dra_driver.tools.world.documents import Document, read_documents, shown
from dra_driver.tools.world.fields import bad_reference
from dra_driver.tools.world.queries import refuse_inadmissible
from dra_driver.tools.world.shapes import ShapeChecker, checked, refuse_unknown, with_place
from dra_driver.tools.world.world import PATHS, World, ask_gates, with_defaults

# Implicit names of classes as extended resources, which the scheduler of Kubernetes 1.34 ignores.


def ignored_resources(world: World, asked: Sequence[str]) -> tuple[str, ...]:
    """Return those of a pod's extended resources that its scheduler ignores.

    Beside a resource with another name, the implicit name is ignored only of a class without an extendedResourceName.
    """
    if not world.serves_resources or world.serves_implicit_names:
        return ()
    implicit = tuple(name for name in asked if name.startswith(IMPLICIT))
    if len(implicit) == len(asked):
        return implicit
    classes = world.of("DeviceClass")
    unnamed = {one["metadata"]["name"] for one in classes if not (one.get("spec") or {}).get("extendedResourceName")}
    return tuple(name for name in implicit if name.removeprefix(IMPLICIT) in unnamed)


NOT_SEEN = "input.not-seen"  # something that a pod refers to may not be read


@dataclass(frozen=True, slots=True)
class PodClaims:
    """A pod's claims. `resources` are the extended resources that the pod asks for and that no class serves."""

    claims: tuple[Wire, ...] = ()
    resources: tuple[str, ...] = ()


def pod_claims(world: World, pod: Wire) -> PodClaims:
    """Return a pod's claims, including those that a cluster would make from a template or for extended resources.

    Raises:
        InputError: A claim or template is missing.
    """
    entry = _made_for_resources(world, pod)
    if entry is not None:
        return PodClaims((*_named_claims(world, pod), entry), ())
    *made, changed = with_claim(pod, world.classes_by_resource)
    asked = extended_resources(pod)
    ignored = ignored_resources(world, asked)
    judged = (name for name in asked if name not in ignored and not is_unknown(world, name))
    unserved = tuple(name for name in judged if name not in world.classes_by_resource)
    return PodClaims((*_named_claims(world, {**changed, "spec": pod["spec"]}), *made), unserved)


def _made_for_resources(world: World, pod: Wire) -> Wire | None:
    """Return the claim that the scheduler has made for a pod's extended resources, if it has made one."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    name = status.get("resourceClaimName")
    return world.find("ResourceClaim", _namespace(pod), name) if isinstance(name, str) else None


def _named_claims(world: World, pod: Wire) -> Iterable[Wire]:
    """Yield the claims behind spec.resourceClaims."""
    made = {
        status["name"]: status.get("resourceClaimName")
        for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for wanted in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = made.get(wanted["name"]) or wanted.get("resourceClaimName")
        if name:
            yield _found(world, "ResourceClaim", name, wanted, pod)
            continue
        if wanted["name"] in made:
            continue  # the controller found that this pod needs no claim here
        name = wanted.get("resourceClaimTemplateName", "")
        template = _found(world, "ResourceClaimTemplate", name, wanted, pod)
        metadata = {"name": f"{pod['metadata']['name']}-{wanted['name']}", "namespace": _namespace(pod)}
        yield {"kind": "ResourceClaim", "metadata": metadata, "spec": template["spec"]["spec"]}


def _found(world: World, kind: str, name: str, wanted: Wire, pod: Wire) -> Wire:
    namespace = _namespace(pod)
    found = world.find(kind, namespace, name)
    if found is not None:
        return found
    needs = f"its claim {wanted['name']} needs {kind} {namespace}/{name}"
    if world.is_unseen(kind, namespace):
        text = f"it is not known whether pod {pod_name(pod)} can be scheduled: {needs}, which may not be read"
        raise InputError("not-seen", text)
    text = f"pod {pod_name(pod)} can't be scheduled: {needs}"
    maker = world.makers.get((namespace, name))
    if maker:
        raise InputError("missing", f"{text}, which another driver makes for {maker}, so it is not known here")
    here = {one["metadata"]["name"]: one["metadata"].get("namespace") or namespace for one in world.of(kind)}
    own = [one for one, where in here.items() if where == namespace]
    near = get_close_matches(name, own, n=1, cutoff=0.5)
    hint = f"did you mean {namespace}/{near[0]}?" if near else f"no {kind} in namespace {namespace} has a similar name"
    if not near and name in here:
        hint = f"there is one in namespace {here[name]}, but a pod uses only those of its own namespace"
    raise InputError("missing", f"{text}, which is missing", hint=hint)


def extended_resources(pod: Wire) -> tuple[str, ...]:
    """Return the extended resources that a pod's containers ask for, except those with an amount of 0.

    Source: Kubernetes resource names: those with a domain, except kubernetes.io's own and huge pages.
    """
    spec = pod.get("spec") or {}
    names: dict[str, None] = {}
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        for key in ("limits", "requests"):
            wanted = ((container.get("resources") or {}).get(key) or {}) if isinstance(container, dict) else {}
            for name, amount in wanted.items():
                if "/" in name and not name.startswith("kubernetes.io/") and not _is_none(amount):
                    names[name] = None
    return tuple(names)


def _is_none(amount: object) -> bool:
    try:
        return Quantity.parse(str(amount)).value <= 0
    except QuantityError:
        return False


def is_unknown(world: World, resource: str) -> bool:
    """Return whether it is unknown if a resource is offered.

    That is so if no class serves it, and no node lists what it offers, as is the case for simulated nodes.
    """
    if any((node.get("status") or {}).get("allocatable") for node in world.of("Node")):
        return False
    domain = resource.partition("/")[0]
    known = {"deviceclass.resource.kubernetes.io"}
    for one in world.of("DeviceClass"):
        known |= {one["metadata"]["name"], str((one.get("spec") or {}).get("extendedResourceName")).partition("/")[0]}
    return not any(name == domain or name.endswith(f".{domain}") for name in known)


def resource_notes(world: World, pod: Wire) -> list[str]:
    """Return sentences on a pod's extended resources that may or may not be offered, and on those that are ignored."""
    asked = extended_resources(pod)
    notes = []
    if names := [name for name in asked if is_unknown(world, name)]:
        notes.append(f"not judged: {', '.join(names)}; the nodes here do not say whether they offer it")
    if ignored := ignored_resources(world, asked):
        notes.append(
            f"pod {pod_name(pod)} starts without {', '.join(ignored)}: the scheduler of Kubernetes 1.34 makes no claim "
            "for the implicit name of a class"
        )
    return notes


def unserved(world: World, resources: Sequence[str]) -> str:
    """Return a sentence on what happens to extended resources that no class serves."""
    names = ", ".join(resources)
    if is_offered(world, resources):
        return f"asks for {names}, which a device plugin offers; whether that fits is not judged here"
    classes = sorted(
        f"{one['metadata']['name']} ({resource})"
        for one in world.of("DeviceClass")
        if (resource := (one.get("spec") or {}).get("extendedResourceName"))
    )
    there = f"there are {', '.join(classes)}" if classes else "no class has an extendedResourceName"
    if not world.serves_resources:
        return (
            f"waits for {names}: no node offers it, and classes serve extended resources only where the gate "
            f"DRAExtendedResource is on; {there}"
        )
    return f"waits for {names}: no DeviceClass serves it and no node offers it; {there}"


def is_offered(world: World, resources: Sequence[str]) -> bool:
    """Return whether nodes offer these resources, as device plugins do."""
    offered = [(one.get("status") or {}).get("allocatable") or {} for one in world.of("Node")]
    return all(any(str(one.get(name, "0")) != "0" for one in offered) for name in resources)


def pod_name(pod: Wire) -> str:
    """Return the name of a pod for people, with its namespace unless that is "default"."""
    namespace = _namespace(pod)
    name = pod["metadata"]["name"]
    return str(name) if namespace == "default" else f"{namespace}/{name}"


def allocation_of(claim: Wire) -> Wire | None:
    """Return the allocation of a claim, or None if it has none."""
    return (claim.get("status") or {}).get("allocation") or None


def _namespace(pod: Wire) -> str:
    return pod["metadata"].get("namespace") or "default"


# Workloads in files: objects from which pods are made.

# The short names of workloads on a command line. Source: kubectl api-resources.
SHORT_KINDS = {
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "cj": "cronjob",
    "rc": "replicationcontroller",
    "lws": "leaderworkerset",
}
# Kinds that people keep in the same files as workloads, and whose pods ask for no devices.
_WITHOUT_PODS = frozenset(
    """
    Namespace ConfigMap Secret Service ServiceAccount Endpoints EndpointSlice Event LimitRange ResourceQuota
    PersistentVolume PersistentVolumeClaim StorageClass CSIDriver Role RoleBinding ClusterRole ClusterRoleBinding
    NetworkPolicy Ingress IngressClass PriorityClass RuntimeClass PodDisruptionBudget HorizontalPodAutoscaler
    CustomResourceDefinition ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
    ValidatingWebhookConfiguration MutatingWebhookConfiguration APIService Lease PodTemplate
    ClusterQueue LocalQueue ResourceFlavor WorkloadPriorityClass PodMonitor ServiceMonitor PodGroup
    DeviceTaintRule Gateway HTTPRoute ControllerRevision
    """.split()  # noqa: SIM905 - a list of words is easier to read
)


def add_workload(world: World, wire: Wire, name: str) -> None:
    """Add the pod templates of an object; if none is known although it may make pods, list it as an unknown object.

    Raises: InputError for a number of pods that is not a valid count.
    """
    kind = str(wire.get("kind") or "")
    _note_maker(world, wire, name)
    if kind in _WITHOUT_PODS:
        return
    found = templates_of(wire)
    if found:
        world.templates += found
    else:
        world.unknown_objects.append(f"{kind} {name}")


def _note_maker(world: World, wire: Wire, name: str) -> None:
    """Record the ResourceClaimTemplate that another driver makes for a ComputeDomain.

    Source: NVIDIA k8s-dra-driver-gpu, ComputeDomain resource.nvidia.com/v1beta1, spec.channel.resourceClaimTemplate.
    """
    at: Any = wire
    for key in ("spec", "channel", "resourceClaimTemplate", "name"):
        at = at.get(key) if isinstance(at, dict) else None
    if wire.get("kind") == "ComputeDomain" and isinstance(at, str):
        metadata = wire.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
        world.makers[str(namespace or "default"), at] = f"ComputeDomain {name}"


# Worlds read from files or from a live cluster.


@dataclass(frozen=True, slots=True)
class WantedObjects:
    """Which objects to read from a cluster.

    With `at_home`, only those of the namespace of `access`; with `gates`, also which fields the server keeps.
    """

    kinds: tuple[str, ...]
    at_home: bool = False
    gates: bool = False


EVERYTHING = WantedObjects(tuple(PATHS), gates=True)


def world_of_files(paths: Sequence[str], lines: ProgressLines = NoProgress, home: str = "default") -> World:
    """Read all objects of some files; `home` is the namespace of those that name none. Raises: InputError."""
    world, checker = World(home=home), ShapeChecker()
    for document in read_documents(paths, lines):
        if document.kind in world.objects:
            wire = checked(document, checker)
            refuse_inadmissible(document, wire)
            if document.kind == "Pod":
                _refuse_bad_reference(document, wire)
            if document.kind in {"ResourceClaim", "Pod"}:
                wire = with_defaults(wire, home)
            world.objects[document.kind].append(wire)
        else:
            refuse_unknown(document, document.wire)
            add_workload(world, document.wire, document.name)
    for wire in world.objects["ResourceClaim"]:
        default_requests(wire.get("spec") or {}, f"ResourceClaim {wire['metadata']['name']}")
    for wire in world.objects["ResourceClaimTemplate"]:
        title = f"ResourceClaimTemplate {wire['metadata'].get('name')}"
        default_requests((wire.get("spec") or {}).get("spec") or {}, title)
    return world


def _refuse_bad_reference(document: Document, pod: Wire) -> None:
    fault = bad_reference(pod, f"{shown(document.origin)}: Pod {document.name}")
    if fault is not None:
        raise with_place(document, fault)


def world_of_cluster(
    access: ClusterAccess, lines: ProgressLines = NoProgress, wanted: WantedObjects = EVERYTHING
) -> World:
    """Read the `wanted` objects of a cluster. What may not be read is listed in `World.unseen`. Raises: ApiError."""
    api, checker = access.connect(), ShapeChecker()
    try:
        version = api.server_version()
        world = World(kubernetes=f"{version.major}.{version.minor}", unseen=access.unseen)
        for kind in wanted.kinds:
            world.objects[kind] = access.read(api, kind, PATHS[kind], lines, at_home=wanted.at_home)
            for wire in world.objects[kind]:
                checker.check(kind, wire, "cluster")
        if wanted.gates:
            world.kept = ask_gates(api, version.minor, world.of("Node"))
        return world
    finally:
        api.close()


def place_on_cluster(files: World, cluster: World) -> World:
    """Return a cluster as it would be if the manifests of `files` were applied to it.

    An object of a manifest takes the place of the cluster's object of its name, with the claims that were made for it.
    """
    cluster.from_cluster = frozenset(id(wire) for wires in cluster.objects.values() for wire in wires)
    pods = set(map(_place, files.of("Pod")))
    for kind, wires in cluster.objects.items():
        own = files.of(kind)
        taken = set(map(_place, own))
        cluster.objects[kind] = own + [wire for wire in wires if _place(wire) not in taken and not _owners(wire) & pods]
    for name in ("templates", "unknown_objects", "without_devices", "idle", "makers", "home"):
        setattr(cluster, name, getattr(files, name))
    return cluster


def _place(wire: Wire) -> tuple[str, str]:
    return wire["metadata"].get("namespace") or "", wire["metadata"]["name"]


def _owners(claim: Wire) -> set[tuple[str, str]]:
    metadata = claim["metadata"]
    owners = [reference for reference in metadata.get("ownerReferences") or () if reference.get("kind") == "Pod"]
    return {(metadata.get("namespace") or "", owner["name"]) for owner in owners}


def default_requests(spec: Mapping[str, Any], title: str) -> None:
    """Set the defaults that the API server would set in a hand-written claim.

    Raises: InputError("input.object") for a count that it refuses.
    Source: Kubernetes, pkg/apis/resource/v1/defaults.go (a count of 0 becomes 1) and pkg/apis/resource/validation.
    """
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if one is None:
                continue
            one["allocationMode"] = one.get("allocationMode") or "ExactCount"
            count = one.get("count") or 0
            if one["allocationMode"] == "ExactCount":
                one["count"] = count or 1
            if count < 0 or (count and one["allocationMode"] == "All"):
                why = "must be greater than zero" if count < 0 else "must not be given with allocationMode: All"
                where = f"{title}: request {request.get('name')}"
                raise InputError("object", f"{where}: count {count} {why}; the API server refuses it")


# Workloads of a live cluster: the pods of a workload, or its template if there are none; and a pod's last event.

_SECONDS = 30.0
_MAX_EVENTS = "500"


def add_cluster_workload(world: World, access: ClusterAccess, asked: Sequence[str], namespace: str) -> None:
    """Add a workload of a cluster to a world: its pods if there are any, otherwise its template.

    Raises: ApiError if the cluster can't be asked.
    """
    word = asked[0].lower().partition(".")[0]  # kubectl accepts deployments.apps as well
    path = WORKLOADS.get(SHORT_KINDS.get(word, word.removesuffix("s")))
    if path is None:
        return
    wire = _read(access, named(within(path, namespace), asked[1]))
    for template in templates_of(wire) if wire is not None else ():
        labels = template.pod["metadata"].get("labels") or {}
        there = [pod for pod in world.of("Pod") if _is_made_of(pod, namespace, labels)]
        if there:
            world.workloads.append(Workload(template, tuple(there)))
        else:
            world.templates.append(template)


def _is_made_of(pod: Wire, namespace: str, labels: Wire) -> bool:
    metadata = pod["metadata"]
    if not labels or metadata.get("namespace") != namespace:
        return False
    return bool(labels.items() <= (metadata.get("labels") or {}).items())


def last_event(access: ClusterAccess, namespace: str, name: str) -> str:
    """Return the last event of a pod, reason and message; "" if there is none or it may not be read."""
    selector = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={name}", "limit": _MAX_EVENTS}
    try:
        answer = _read(access, within(EVENTS, namespace), selector)
    except ApiError:
        return ""
    events = [item for item in (answer or {}).get("items") or [] if "kubelet" in _reporters(item)]
    if not events:
        return ""
    latest = max(events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    return f"{latest.get('reason')}: {latest.get('message')}"


def _reporters(event: Wire) -> set[str | None]:
    return {(event.get("source") or {}).get("component"), event.get("reportingComponent")}


def _read(access: ClusterAccess, path: str, query: dict[str, str] | None = None) -> Wire | None:
    """Read one object; return None if there is none. Raises: ApiError."""
    api = access.connect()
    try:
        return api.request("GET", path, query=query or {}, timeout_s=_SECONDS)
    except ApiError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    finally:
        api.close()
