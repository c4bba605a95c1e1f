"""Pods found in objects of any kind, by the shape of a pod's spec, and three families that write pods in their own way.

In: an object. Out: `PodShape`s: the place of containers, node rules, tolerations and claims in each. A mapping whose
`containers` is a list of named containers is a pod's spec, whatever surrounds it, so Deployments, PyTorchJobs,
RayClusters and unknown CRDs are all found alike. Objects whose pods can't have claims are listed by kind.

Source: Argo Workflows (Template, podSpecPatch), KServe (InferenceService: a predictor is a pod's spec with a container
named after the model's framework), Knative Serving (fields of a revision's pod).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.tools.migrate.report import TEMPLATE, KubeObject, Step
from dra_driver.tools.migrate.resources import NOTHING_KNOWN, DeviceKind, Known, kind_of, rows_of

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


# The devices that the containers of a pod request, as requests of claims.

MAX = 32  # the most requests in a claim, and the most devices in its allocation


@dataclass(frozen=True, slots=True)
class WantedDevices:
    """The number of devices that one container requests of one resource."""

    container: Container
    resource: str
    kind: DeviceKind
    count: int


@dataclass(slots=True)
class DeviceRequest:
    """One request: devices of one kind, and the containers that use them. `claim` numbers the claims from 0."""

    kind: DeviceKind
    count: int
    users: list[Container] = field(default_factory=list)
    is_free: bool = True  # an init container may use them, because it ends before their users start
    name: str = ""
    claim: int = 0


def requests_of(wants: list[WantedDevices]) -> list[DeviceRequest]:
    """Return the requests of a pod, named and spread over claims."""
    requests: list[DeviceRequest] = []
    for want in wants:
        if not want.container.is_init:
            is_free = "initContainers" not in want.container.path
            requests += _pieces(want, is_free=is_free)
    for want in wants:
        if want.container.is_init:
            _share(want, requests)
    _name(requests)
    _spread(requests)
    return requests


def _pieces(want: WantedDevices, *, is_free: bool) -> list[DeviceRequest]:
    """Split a count into pieces that each fit into one claim."""
    counts = [MAX] * (want.count // MAX) + ([want.count % MAX] if want.count % MAX else [])
    return [DeviceRequest(want.kind, count, [want.container], is_free) for count in counts]


def _share(want: WantedDevices, requests: list[DeviceRequest]) -> None:
    """Assign to an init container devices that others use after it, and add a request for what is missing."""
    missing = want.count
    free = [request for request in requests if request.kind == want.kind and request.is_free]
    for request in sorted(free, key=lambda request: request.count != missing):
        if not missing:
            return
        if request.count > missing:
            requests.insert(
                requests.index(request) + 1, DeviceRequest(request.kind, request.count - missing, list(request.users))
            )
            request.count = missing
        request.users.append(want.container)
        missing -= request.count
    if missing:
        requests += _pieces(WantedDevices(want.container, want.resource, want.kind, missing), is_free=True)


def _name(requests: list[DeviceRequest]) -> None:
    """Assign names to the requests: those of the containers if there are several, otherwise that of the device."""
    taken: set[str] = set()
    containers = {request.users[0].name for request in requests}
    for request in requests:
        device = label(request.kind.stem)
        own = [other for other in requests if other.users[0].name == request.users[0].name]
        stem = device if len(containers) == 1 else label(request.users[0].name)
        if len(containers) > 1 and len({other.kind for other in own}) > 1:
            stem = label(f"{stem}-{device}")
        request.name = free_name(stem, taken)
        taken.add(request.name)


def _spread(requests: list[DeviceRequest]) -> None:
    claim = count = devices = 0
    for request in requests:
        if count + 1 > MAX or devices + request.count > MAX:
            claim, count, devices = claim + 1, 0, 0
        request.claim = claim
        count, devices = count + 1, devices + request.count


def label(text: str) -> str:
    """Turn a text into a DNS label; a text that is too long keeps its beginning and ends in a hash of the whole.

    >>> label("mig-1g.10gb+me"), label("Worker_0")
    ('mig-1g-10gb-me', 'worker-0')
    """
    import hashlib
    import re

    made = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "gpu"
    if len(made) <= MAX_NAME:
        return made
    sign = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{made[: MAX_NAME - 9].rstrip('-')}-{sign}"


MAX_NAME = 57  # the 63 characters of a DNS label, less what `free_name` and the names of templates may append


def free_name(stem: str, taken: set[str]) -> str:
    """Return a name that is not taken: `stem` itself, or `stem` with a number appended."""
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


# Names of claim templates: derived from their object, the same on every run, and never a name that is taken.

Spec = dict[str, Any]


@dataclass(slots=True)
class TemplateNames:
    """The templates that exist, by name, each with namespace and spec; and the names of existing ConfigMaps."""

    known: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    configs: set[tuple[str, str]] = field(default_factory=set)

    def record(self, objects: Iterable[KubeObject]) -> None:
        """Record the templates and ConfigMaps among these objects."""
        for wire in objects:
            if wire.kind == "ConfigMap":
                self.configs.add((wire.stem, wire.namespace))
            if wire.kind == TEMPLATE:
                spec = wire.wire.get("spec")
                inner = spec.get("spec") if isinstance(spec, dict) else None
                self.add(wire.stem, wire.namespace, inner if isinstance(inner, dict) else {})

    def has_config(self, name: str, namespace: str) -> bool:
        """Return whether a ConfigMap of this name exists."""
        return (name, namespace) in self.configs

    def add(self, name: str, namespace: str, spec: Spec) -> None:
        """Record one template."""
        self.known.setdefault(name, []).append((namespace, _sign(spec)))

    def find(self, name: str, namespace: str, spec: Spec) -> bool | None:
        """Return True if the template of this name has this very spec, False if another, None if the name is free."""
        rows = [sign for there, sign in self.known.get(name, ()) if there == namespace or not there or not namespace]
        if not rows:
            return None
        return all(sign == _sign(spec) for sign in rows)


@dataclass(slots=True)
class ObjectTemplates:
    """Template names for one object's claim specs.

    With `has_roles` the names contain the role of the pod, too. `made` lists the templates that have to be written.
    """

    owner: KubeObject
    names: TemplateNames
    has_roles: bool
    made: list[tuple[str, Spec]] = field(default_factory=list)
    _used: dict[str, str] = field(default_factory=dict)

    def name(self, specs: list[Spec], role: str) -> list[str]:
        """Return the names of the templates of a pod, one for each of its claim specs."""
        return [self._one(spec, role) for spec in specs]

    def _one(self, spec: Spec, role: str) -> str:
        sign = _sign(spec)
        if sign in self._used:
            return self._used[sign]
        stem = f"{self.owner.stem.strip('-')}-{role}" if role and self.has_roles else self.owner.stem.strip("-")
        stem = f"{label(stem)}-gpu"
        refused: set[str] = set()
        name = stem
        while (there := self.names.find(name, self.owner.namespace, spec)) is False:
            refused.add(name)
            name = free_name(stem, refused)
        if there is None:
            self.names.add(name, self.owner.namespace, spec)
            self.made.append((name, spec))
        self._used[sign] = name
        return name


def _sign(spec: Spec) -> str:
    return json.dumps(spec, sort_keys=True)
