"""Pod templates: which pods the controllers make from an object, whatever its kind.

A mapping with `containers` is a pod's spec. The number of pods is the product of the counts on the path to it:
`replicas`, `parallelism` (no more than `completions`), `numOfHosts`, the `size` of a LeaderWorkerSet's group. So
unknown kinds are read in the same way as Deployments. Pure. In: an object. Out: `PodTemplate`s.

Source: Kubernetes apps/v1 and batch/v1; Kubeflow training-operator v1 and mpi-operator v2beta1 (replicaSpecs); KubeRay
v1 (headGroupSpec, workerGroupSpecs.numOfHosts); leaderworkerset/v1 (size counts the leader); jobset/v1alpha2
(replicatedJobs); Volcano batch/v1alpha1 (tasks).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

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
