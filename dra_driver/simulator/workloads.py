"""Pod templates: which pods the controllers make from an object, whatever its kind.

A mapping with `containers` is a pod's spec. The number of pods is the product of the counts on the path to it:
`replicas`, `parallelism` (no more than `completions`), `numOfHosts`, the `size` of a LeaderWorkerSet's group. So
unknown kinds are read in the same way as Deployments. Pure. In: an object. Out: `PodTemplate`s.

Source: Kubernetes apps/v1 and batch/v1; Kubeflow training-operator v1 and mpi-operator v2beta1 (replicaSpecs); KubeRay
v1 (headGroupSpec, workerGroupSpecs.numOfHosts); leaderworkerset/v1 (size counts the leader); jobset/v1alpha2
(replicatedJobs); Volcano batch/v1alpha1 (tasks).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.quantity import Quantity
from dra_driver.base.wire import Wire
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS

MAX_PODS = 100_000
_NEVER_PODS = frozenset({"status", "metadata", "podTemplates"})
# Keys on the path to a template that do not name the role of its pods.
_PLAIN_STEPS = frozenset(
    {"spec", "template", "jobTemplate", "leaderWorkerTemplate", "rayClusterSpec", "rayClusterConfig", "predictor"}
)
_ROLE_ENDINGS = re.compile(r"(PodTemplate|GroupSpec|Template|Spec)$")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One template of an object: `count` pods are made from it, or one for each node (`is_per_node`).

    `role` tells the templates of one object apart: "worker", "head"; "" if there is only one. From an object that is
    suspended (Jobs, CronJobs, and others with `suspend` in their spec or run policy) no pods are made.
    """

    kind: str
    name: str
    namespace: str
    role: str
    count: int
    pod: Wire
    is_per_node: bool = False
    is_suspended: bool = False

    def pods(self) -> Iterator[Wire]:
        """Yield the pods, numbered from 0."""
        if self.is_suspended:
            return
        stem = f"{self.name}-{self.role}" if self.role else self.name
        for number in range(self.count):
            yield self.named(f"{stem}-{number}")

    def named(self, name: str) -> Wire:
        """Return one pod of this template."""
        metadata = {**self.pod["metadata"], "name": name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        return {**self.pod, "metadata": metadata}


def templates_of(wire: Wire) -> list[PodTemplate]:
    """Return the pod templates of an object other than a pod. Raises: InputError for an invalid count."""
    metadata = wire.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kind, name = str(wire.get("kind")), str(metadata.get("name") or metadata.get("generateName") or "")
    found = list(_templates(wire.get("spec"), ("spec",), 1, {}, f"{kind} {name}"))
    if sum(count for _, count, _ in found) > MAX_PODS:
        raise InputError("too-many-pods", f"{kind} {name} makes more than {MAX_PODS:,} pods")
    namespace = str(metadata.get("namespace") or "")
    suspended = _is_suspended(wire.get("spec"))
    return [
        PodTemplate(kind, name, namespace, role if len(found) > 1 else "", count, pod, kind == "DaemonSet", suspended)
        for role, count, pod in found
    ]


def _is_suspended(spec: Any) -> bool:
    """Return whether a spec holds its pods back.

    Source: suspend of batch/v1, KubeRay and JobSet; Kubeflow's runPolicy.suspend.
    """
    if not isinstance(spec, dict):
        return False
    policy = spec.get("runPolicy")
    return spec.get("suspend") is True or (isinstance(policy, dict) and policy.get("suspend") is True)


def _templates(
    value: Any, path: tuple[str, ...], count: int, metadata: Wire, owner: str
) -> Iterator[tuple[str, int, Wire]]:
    """Yield role, count and pod of each template in a value."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("containers"), list):
        kept = {key: metadata[key] for key in ("labels", "annotations") if isinstance(metadata.get(key), dict)}
        yield _role(path), count, {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": value}
        return
    count *= _count(value, owner)
    beside = value.get("metadata")
    for key, inner in value.items():
        if key in _NEVER_PODS:
            continue
        more = count * _of_group(key, value, owner)
        if isinstance(inner, list):
            for number, entry in enumerate(inner):
                yield from _templates(entry, (*path, _entry_name(entry, key, number)), more, {}, owner)
        else:
            own = beside if key == "spec" and isinstance(beside, dict) else {}
            yield from _templates(inner, (*path, str(key)), more, own, owner)


def _count(value: Wire, owner: str) -> int:
    """Return how many copies are made of what a mapping describes, according to the counts in it."""
    parallel = _whole(value, "parallelism", owner)
    completions = _whole(value, "completions", owner, unset=parallel)
    count = min(parallel, completions)
    return count * _whole(value, "replicas", owner) * _whole(value, "numOfHosts", owner)


def _of_group(key: str, value: Wire, owner: str) -> int:
    """Return how many pods of a group a LeaderWorkerSet makes of the template under a key; 1 elsewhere."""
    if key != "workerTemplate":
        return 1
    size = _whole(value, "size", owner)
    return max(size - 1, 0) if value.get("leaderTemplate") else size


def _whole(value: Wire, key: str, owner: str, *, unset: int = 1) -> int:
    number = value.get(key)
    if number is None:
        return unset
    if type(number) is not int or not 0 <= number <= MAX_PODS:
        raise InputError("count", f"{owner}: {key} is not a whole number from 0 to {MAX_PODS:,}")
    return number


def _entry_name(entry: Any, key: str, number: int) -> str:
    named = (entry.get("name") or entry.get("groupName")) if isinstance(entry, dict) else None
    return named if isinstance(named, str) else f"{key}-{number}"


def _role(path: tuple[str, ...]) -> str:
    """Return the last key on the path that names a role, without its ending; "" if none does."""
    for step in reversed(path):
        if step not in _PLAIN_STEPS:
            return _ROLE_ENDINGS.sub("", step).lower() or step.lower()
    return ""


# The device requests that represent a pod's extended resources.


@dataclass(slots=True)
class ExtendedRequests:
    """Requests in the scheduler's order; `used` has the names that each container uses, init containers first."""

    requests: list[Wire] = field(default_factory=list)
    used: list[list[str]] = field(default_factory=list)


def extended_requests(pod: Wire, classes: Mapping[str, str]) -> ExtendedRequests:
    """Return the requests for a pod's extended resources that classes serve. Raises: QuantityError."""
    init, staying = list(pod["spec"].get("initContainers") or ()), list(pod["spec"].get("containers") or ())
    containers = [*init, *staying]
    amounts = [_amounts(container) for container in containers]
    ends = [n for n, one in enumerate(init) if one.get("restartPolicy") != "Always"]
    made = ExtendedRequests(used=[[] for _ in containers])
    for resource in sorted({name for amount in amounts for name in amount} & classes.keys()):
        _add(made, amounts, ends, resource, classes[resource])
    return made


def _add(
    made: ExtendedRequests, amounts: Sequence[Mapping[str, int]], ends: Sequence[int], resource: str, name: str
) -> None:
    """Add the requests for one resource."""
    held: dict[int, Wire] = {}
    for number, one in enumerate(amounts):
        if number not in ends and one.get(resource):
            held[number] = _request(number, one, resource, name, one[resource])
            made.used[number].append(held[number]["name"])
    surplus: dict[int, Wire] = {}
    for number in ends:
        missing = amounts[number].get(resource, 0)
        for later, request in held.items():
            if later >= number and missing > 0:
                made.used[number].append(request["name"])
                missing -= request["exactly"]["count"]
        if missing > 0:
            surplus[number] = _request(number, amounts[number], resource, name, missing)
    if surplus:
        largest = max(surplus.values(), key=lambda request: request["exactly"]["count"])
        made.requests.append(largest)
        for number in surplus:
            made.used[number].append(largest["name"])
    made.requests += held.values()


def _request(number: int, amounts: Mapping[str, int], resource: str, class_name: str, count: int) -> Wire:
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
    return {"name": f"container-{number}-request-{sorted(amounts).index(resource)}", "exactly": exactly}


def _amounts(container: Wire) -> dict[str, int]:
    """Return what a container requests; a limit replaces a missing request, as the API server fills it in."""
    resources: dict[str, Any] = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {str(name): max(math.ceil(Quantity.parse(str(value)).value), 0) for name, value in wanted.items()}


# Workloads: the pods and claims that controllers and the scheduler create from other objects, as examples need
# them.

_KINDS = frozenset({"Deployment", "Job"})
ENTRY = "extended-resources"
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def is_workload(document: Wire) -> bool:
    """Return whether this is an object that pods are made from."""
    return document.get("kind") in _KINDS


def expand(objects: Iterable[Wire]) -> Iterator[Wire]:
    """Yield pods in place of workloads, and a claim beside each pod that uses extended resources."""
    known = list(objects)
    classes = classes_by_resource(wire for wire in known if wire["kind"] == CLASSES.kind)
    for wire in known:
        pods = [pod for template in templates_of(wire) for pod in template.pods()] if is_workload(wire) else [wire]
        for one in pods:
            yield from with_claim(one, classes) if one["kind"] == PODS.kind else [one]


def classes_by_resource(classes: Iterable[Wire], *, with_implicit: bool = True) -> dict[str, str]:
    """Return the class that serves each extended resource: the newest that names it, of equally old ones the first.

    Source: scheduler plugin dynamicresources, extended resource cache; every class also serves its implicit name.
    """
    found: dict[str, tuple[str, str]] = {}
    for wire in classes:
        metadata = wire["metadata"]
        if with_implicit:
            found[IMPLICIT + metadata["name"]] = ("", metadata["name"])
        resource = (wire.get("spec") or {}).get("extendedResourceName")
        if not resource:
            continue
        made, name = found.get(resource, ("", ""))
        here = str(metadata.get("creationTimestamp") or "")
        if not name or here > made or (here == made and metadata["name"] < name):
            found[resource] = (here, metadata["name"])
    return {resource: name for resource, (_, name) in found.items()}


def with_claim(pod: Wire, classes: Mapping[str, str]) -> Iterator[Wire]:
    """Yield a pod, preceded by the claim for its extended resources if classes serve any."""
    found = extended_requests(pod, classes)
    if not found.requests:
        yield pod
        return
    init = len(pod["spec"].get("initContainers") or ())
    name = f"{pod['metadata']['name']}-{ENTRY}"
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": CLAIMS.kind,
        "metadata": {**{k: v for k, v in pod["metadata"].items() if k == "namespace"}, "name": name},
        "spec": {"devices": {"requests": found.requests}},
    }
    entries = [*(pod["spec"].get("resourceClaims") or []), {"name": ENTRY, "resourceClaimName": name}]
    changed = {key: _using(pod["spec"].get(key), names) for key, names in _by_list(found.used, init)}
    kept = {key: containers for key, containers in changed.items() if containers}
    yield {**pod, "spec": {**pod["spec"], **kept, "resourceClaims": entries}}


def _by_list(used: Sequence[Sequence[str]], init: int) -> tuple[tuple[str, Sequence[Sequence[str]]], ...]:
    return ("initContainers", used[:init]), ("containers", used[init:])


def _using(containers: Any, used: Sequence[Sequence[str]]) -> list[Wire]:
    """Return containers in which the requests that they use replace their extended resources."""
    return [
        {**one, "resources": {"claims": [{"name": ENTRY, "request": name} for name in names]}} if names else one
        for one, names in zip(containers or (), used, strict=True)
    ]
