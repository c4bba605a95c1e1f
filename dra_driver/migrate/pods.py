"""Pods found in objects of any kind, by the shape of a pod's spec, and three families that write pods in their own way.

In: an object. Out: `PodShape`s: the place of containers, node rules, tolerations and claims in each. A mapping whose
`containers` is a list of named containers is a pod's spec, whatever surrounds it, so Deployments, PyTorchJobs,
RayClusters and unknown CRDs are all found alike. Objects whose pods can't have claims are listed by kind.

Source: Argo Workflows (Template, podSpecPatch), KServe (InferenceService: a predictor is a pod's spec with a container
named after the model's framework), Knative Serving (fields of a revision's pod).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_driver.migrate.report import Step
from dra_driver.migrate.resources import NOTHING_KNOWN, Known, kind_of, rows_of

_CONTAINER_LISTS = ("containers", "initContainers")
_SKIPPED = {"status", "metadata"}
_ARGO_KINDS = {"Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"}
_ARGO_LISTS = ("initContainers", "sidecars")
_REFUSE_CLAIMS = {
    ("serving.knative.dev", "Service"): "Knative allows no resourceClaims in its pods",
    ("serving.knative.dev", "Configuration"): "Knative allows no resourceClaims in its pods",
    ("serving.kserve.io", "ServingRuntime"): "a ServingRuntime has no resourceClaims; an InferenceService has",
    ("serving.kserve.io", "ClusterServingRuntime"): "a ServingRuntime has no resourceClaims; an InferenceService has",
}


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `is_init` means that it ends before the others start, which a sidecar does not."""

    wire: dict[str, Any]
    path: tuple[Step, ...]
    is_init: bool = False
    fallback: str = "main"

    @property
    def name(self) -> str:
        """The container's name, or the one that its framework would give it."""
        found = self.wire.get("name")
        return found if isinstance(found, str) and found else self.fallback


@dataclass(frozen=True, slots=True)
class PodShape:
    """One pod as an object writes it.

    With `is_patch` the object has no field for claims, and they go into its text `podSpecPatch` instead.
    """

    spec: dict[str, Any]
    path: tuple[Step, ...]
    containers: tuple[Container, ...]
    role: str = ""
    is_patch: bool = False


def refuses_claims(wire: dict[str, Any]) -> str:
    """Return why the pods of such an object can't have claims; "" if they can."""
    group = str(wire.get("apiVersion") or "").rpartition("/")[0]
    return _REFUSE_CLAIMS.get((group, str(wire.get("kind") or "")), "")


def shapes_of(wire: dict[str, Any], known: Known = NOTHING_KNOWN) -> Iterator[PodShape]:
    """Yield the pods of an object."""
    group = str(wire.get("apiVersion") or "").rpartition("/")[0]
    if group == "argoproj.io" and wire.get("kind") in _ARGO_KINDS:
        yield from _argo(wire, ())
        return
    served = known if group == "serving.kserve.io" else None
    for key, value in wire.items():
        if key not in _SKIPPED:
            yield from _found(value, (key,), wire, served)


def _found(value: Any, path: tuple[Step, ...], root: dict[str, Any], served: Known | None) -> Iterator[PodShape]:
    """Yield the pods below a value; `served` (KServe only) holds the known resources that reveal model servers."""
    if isinstance(value, dict):
        containers = _containers(value, path)
        if served is not None and path[-1] in {"predictor", "transformer", "explainer"}:
            containers += _model_servers(value, path, served)
        if containers:
            yield PodShape(value, path, containers, _role(root, path))
        for key, inner in value.items():
            # A pod may contain another one, such as the workers in a predictor of KServe, but never in its containers.
            if containers and key in _CONTAINER_LISTS:
                continue
            yield from _found(inner, (*path, key), root, served)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _found(inner, (*path, number), root, served)


def _containers(spec: dict[str, Any], path: tuple[Step, ...]) -> tuple[Container, ...]:
    """Return the containers of a pod's spec; nothing for any other mapping."""
    if not _is_containers(spec.get("containers")):
        return ()
    found = []
    for key in _CONTAINER_LISTS:
        for number, container in rows_of(spec.get(key)):
            is_init = key == "initContainers" and container.get("restartPolicy") != "Always"
            found.append(Container(container, (*path, key, number), is_init))
    return tuple(found)


def _is_containers(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in value)


def _model_servers(spec: dict[str, Any], path: tuple[Step, ...], known: Known) -> tuple[Container, ...]:
    """Return the containers that are the value of a framework's name instead of an item of a list."""
    return tuple(
        Container(value, (*path, key), fallback="kserve-container")
        for key, value in spec.items()
        if isinstance(value, dict) and wants_devices(value.get("resources"), known)
    )


def wants_devices(resources: Any, known: Known = NOTHING_KNOWN) -> bool:
    """Return whether a container's resources name any resource of the device plugin."""
    fields = [resources.get(field) for field in ("limits", "requests")] if isinstance(resources, dict) else []
    return any(kind_of(name, known) for field in fields if isinstance(field, dict) for name in field)


def _argo(value: Any, path: tuple[Step, ...]) -> Iterator[PodShape]:
    """Yield the pods of a workflow's templates."""
    if isinstance(value, dict):
        if path and isinstance(path[-1], int) and "templates" in path:
            containers = tuple(_argo_containers(value, path))
            if containers:
                yield PodShape(value, path, containers, str(value.get("name") or ""), is_patch=True)
                return
        for key, inner in value.items():
            if path or key not in _SKIPPED:
                yield from _argo(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _argo(inner, (*path, number))


def _argo_containers(template: dict[str, Any], path: tuple[Step, ...]) -> Iterator[Container]:
    for key in ("container", "script"):
        if isinstance(template.get(key), dict):
            yield Container(template[key], (*path, key))
    grouped = template.get("containerSet")
    lists: list[tuple[tuple[Step, ...], Any]] = [((key,), template.get(key)) for key in _ARGO_LISTS]
    if isinstance(grouped, dict):
        lists.insert(0, (("containerSet", "containers"), grouped.get("containers")))
    for steps, listed in lists:
        for number, one in rows_of(listed):
            yield Container(one, (*path, *steps, number), is_init=steps[0] == "initContainers")


# Steps of a path that do not distinguish one pod of an object from another.
_USUAL = {"spec", "template", "jobTemplate", "podTemplate", "podTemplateSpec", "rayClusterConfig", "rayClusterSpec"}


def _role(root: dict[str, Any], path: tuple[Step, ...]) -> str:
    """Return the role of a pod in its object: "worker" for spec.pytorchReplicaSpecs.Worker.template.spec."""
    word = ""
    value: Any = root
    for position, step in enumerate(path):
        value = value[step]
        following = path[position + 1] if position + 1 < len(path) else None
        if isinstance(step, int):
            named = value.get("groupName") or value.get("name") if isinstance(value, dict) else None
            word = named if isinstance(named, str) and named else f"{path[position - 1]}-{step}"
        elif step not in _USUAL and not isinstance(following, int) and not step.endswith("Specs"):
            word = step.removesuffix("Spec").removesuffix("Template").removesuffix("Group")
    return word
