"""One pod migrated from extended resources to claims.

In: a pod inside its object, changed in place. Out: the specs of its ResourceClaimTemplates, in the order of its claims;
the caller names and writes them. A pod that asks for no device of the device plugin is left unchanged.

Source: Kubernetes admission plugin ExtendedResourceToleration (a toleration for each extended resource: Exists,
NoSchedule); core/v1 PodResourceClaim, ResourceClaim in resources.claims.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.tools.migrate.node_rules import gpu_rules, kind_by_labels, move_to_selectors
from dra_driver.tools.migrate.pods import Container, DeviceRequest, PodShape, WantedDevices, free_name, requests_of
from dra_driver.tools.migrate.report import ReportSubject, shown_path
from dra_driver.tools.migrate.resources import Known, counts_of, kind_of, rows_of

# Remarks about a pod: what is reported without a change of the pod.

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def report_remaining(shape: PodShape, place: ReportSubject) -> None:
    """Report what stays in a migrated pod, and what no claim can replace."""
    place.lost(
        "topology-manager",
        "the kubelet's Topology Manager does not align devices of claims with CPUs",
        "nothing to do if its policy is none; a claim of several GPUs keeps them on one NUMA node with the"
        " constraint matchAttribute: resource.kubernetes.io/numaNode",
    )
    _report_scheduling(shape.spec, place)
    if shape.spec.get("runtimeClassName") == "nvidia":
        place.lost(
            "runtime-class",
            "runtimeClassName: nvidia stays but is not needed: devices are added by CDI",
            "take it out once no node serves this pod by the device plugin",
            "runtimeClassName",
        )
    for container in shape.containers:
        _report_visible_devices(container, place)


def _report_scheduling(spec: dict[str, Any], place: ReportSubject) -> None:
    if node := spec.get("nodeName"):
        place.lost(
            "node-name",
            f"nodeName: {node} bypasses the scheduler, which allocates claims: the pod would never start",
            f"take it out, and choose the node by nodeSelector kubernetes.io/hostname: {node}",
            "nodeName",
        )
    if (name := spec.get("schedulerName")) and name != "default-scheduler":
        place.lost(
            "scheduler-name",
            f"the scheduler {name} has to allocate the claims",
            "check that it supports Dynamic Resource Allocation and has it switched on",
            "schedulerName",
        )


def _report_visible_devices(container: Container, place: ReportSubject) -> None:
    for number, one in rows_of(container.wire.get("env")):
        if one.get("name") == _VISIBLE:
            path = (*container.path, "env", number)
            ReportSubject(place.name, place.report).lost(
                "visible-devices",
                f"container {container.name} sets {_VISIBLE}: with the nvidia runtime it may see GPUs that it has not"
                " claimed",
                "take it out: the claim decides which GPUs the container sees",
                *path,
            )


def report_monitors(resources: list[str], place: ReportSubject) -> None:
    """Report resources that showed all GPUs of a node, which only some namespaces may ask for in claims."""
    for resource in dict.fromkeys(resources):
        place.lost(
            "admin-access",
            f"{resource} became a claim with admin access: the API server refuses it in other namespaces",
            "label the namespace resource.kubernetes.io/admin-access=true, which only administrators should be able to",
        )


def report_ephemeral(spec: dict[str, Any], place: ReportSubject) -> None:
    """Report ephemeral containers that name resources."""
    for number, one in rows_of(spec.get("ephemeralContainers")):
        if one.get("resources"):
            place.lost(
                "ephemeral-container",
                f"ephemeral container {one.get('name')} names resources, which the API server refuses",
                "take them out; an ephemeral container sees the devices of no claim",
                "ephemeralContainers",
                number,
            )


def report_requests_alone(container: Container, place: ReportSubject, known: Known) -> None:
    """Report extended resources that a container requests without a limit."""
    resources = container.wire.get("resources")
    if not isinstance(resources, dict):
        return
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in requests if isinstance(requests, dict) else ():
        if kind_of(name, known) and not (isinstance(limits, dict) and name in limits):
            place.lost(
                "requests-alone",
                f"{name} was in requests only, which the API server refuses in a pod; its count was used",
                "nothing to do, if an operator fills in the limits",
                "resources",
                "requests",
            )


def report_rules_alone(spec: dict[str, Any], place: ReportSubject) -> None:
    """Report rules on the labels of GPUs in a pod that asks for none."""
    if rules := gpu_rules(spec):
        place.lost(
            "labels-alone",
            f"the pod asks for no device but chooses nodes by {', '.join(rule.words for rule in rules)}",
            "left unchanged: it needs GPU feature discovery (or the GPU Operator) to keep labelling nodes",
        )


ClaimSpec = dict[str, Any]
Naming = Callable[[list[ClaimSpec], str], list[str]]
_CLAIM = "gpu"
_PATCH = "podSpecPatch"


@dataclass(frozen=True, slots=True)
class PodMigration:
    """The migration of pods, with the resources whose names stand for something else in `known`."""

    known: Known

    def apply(self, shape: PodShape, subject: ReportSubject, name: Naming) -> None:
        """Migrate one pod in place; `name` returns the names of templates for claim specs. Raises: InputError."""
        place = subject.below(*shape.path)
        wants = self._wants(shape, subject)
        report_ephemeral(shape.spec, place)
        if not any(want.count for want in wants):
            _drop_zeros(wants, subject)
            report_rules_alone(shape.spec, place)
            return
        wanted = [want for want in wants if want.count]
        claims = _PodClaims(shape)
        requests = requests_of(wanted)
        # only the labels of the default vendor are known
        kinds = dict.fromkeys(request.kind for request in requests if request.kind.is_default_vendors)
        rows = move_to_selectors(shape.spec, kinds, place) if kinds else {}
        specs = _specs(requests, rows)
        templates = name(specs, shape.role)
        owned = claims.add(templates, place)
        _use_claims(wants, requests, owned, subject)
        _tolerate(shape.spec, sorted({want.resource for want in wanted}), place)
        report_remaining(shape, place)
        report_monitors([want.resource for want in wanted if want.kind.is_monitor], place)

    def _wants(self, shape: PodShape, subject: ReportSubject) -> list[WantedDevices]:
        found = []
        for container in shape.containers:
            at = f"{subject.name}: {shown_path((*subject.path, *container.path))}"
            for resource, count in counts_of(container.wire.get("resources"), at, self.known).items():
                kind = kind_of(resource, self.known)
                assert kind is not None  # noqa: S101  (counts_of returns only resources with a kind)
                wanted = min(count, 1) if kind.is_monitor else count  # a monitor sees all devices, so one is enough
                found.append(WantedDevices(container, resource, kind_by_labels(shape.spec, kind), wanted))
            report_requests_alone(container, subject.below(*container.path), self.known)
        return found


def _specs(requests: list[DeviceRequest], rows: dict[Any, list[str]]) -> list[ClaimSpec]:
    specs: list[ClaimSpec] = []
    for request in requests:
        while len(specs) <= request.claim:
            specs.append({"devices": {"requests": []}})
        exactly: dict[str, Any] = {"deviceClassName": request.kind.device_class}
        if request.kind.is_monitor:
            exactly |= {"allocationMode": "All", "adminAccess": True}
        elif request.count > 1:
            exactly["count"] = request.count
        texts = [*request.kind.selectors, *rows.get(request.kind, ())]
        if texts:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in texts]
        specs[request.claim]["devices"]["requests"].append({"name": request.name, "exactly": exactly})
    return specs


class _PodClaims:
    """The claims of a pod, written in its field `resourceClaims` or in the text of a patch."""

    def __init__(self, shape: PodShape) -> None:
        self._shape = shape
        self._patch = _read_patch(shape) if shape.is_patch else {}
        holder = (self._patch if shape.is_patch else shape.spec).get("resourceClaims")
        self._taken = {str(one.get("name")) for _, one in rows_of(holder)}

    def add(self, templates: list[str], place: ReportSubject) -> list[str]:
        """Add a claim for each template, and return the names of the claims in the pod."""
        rows, names = [], []
        for template in templates:
            own = free_name(_CLAIM, self._taken)
            self._taken.add(own)
            names.append(own)
            rows.append({"name": own, "resourceClaimTemplateName": template})
        if self._shape.is_patch:
            self._patch.setdefault("resourceClaims", []).extend(rows)
            self._shape.spec[_PATCH] = json.dumps(self._patch)
            why = "the template of a workflow has no field for claims; the patch is merged into its pod"
            place.changed("claim", f"claims {', '.join(names)} were added to the pod's patch", why, _PATCH)
            return names
        existing = self._shape.spec.get("resourceClaims")
        if isinstance(existing, list):
            existing.extend(rows)
        else:
            self._shape.spec["resourceClaims"] = rows
        listed = ", ".join(f"{row['name']} (from template {row['resourceClaimTemplateName']})" for row in rows)
        why = "each pod gets claims of its own, made from the template and deleted with it"
        place.changed("claim", f"claims were added to the pod: {listed}", why, "resourceClaims")
        return names


def _read_patch(shape: PodShape) -> dict[str, Any]:
    text = shape.spec.get(_PATCH)
    if not text:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(str(text)) if "{{" not in str(text) else None
    except YAMLError:
        found = None
    if not isinstance(found, dict):
        raise InputError(
            "patch",
            f"{shown_path((*shape.path, _PATCH))} is not a mapping, so claims can't be added to it",
            hint='write it as JSON, without variables, such as {"terminationGracePeriodSeconds": 5}',
        )
    return found


def _use_claims(
    wants: list[WantedDevices], requests: list[DeviceRequest], owned: list[str], subject: ReportSubject
) -> None:
    """Remove extended resources from the containers, and refer to the claims instead."""
    several = {claim: sum(request.claim == claim for request in requests) > 1 for claim in range(len(owned))}
    for container in {id(want.container): want.container for want in wants}.values():
        place = subject.below(*container.path, "resources")
        resources = container.wire["resources"]
        mine = [want for want in wants if want.container is container]
        for want in mine:
            _drop(resources, want.resource)
        rows = []
        for request in requests:
            if container in request.users:
                part = {"request": request.name} if several[request.claim] else {}
                rows.append({"name": owned[request.claim], **part})
        if rows:
            resources["claims"] = [*_kept_claims(resources), *rows]
            _report_claims(container, mine, rows, requests, place)
        elif not resources:
            del container.wire["resources"]


def _kept_claims(resources: dict[str, Any]) -> list[Any]:
    found = resources.get("claims")
    return found if isinstance(found, list) else []


def _report_claims(
    container: Container,
    mine: list[WantedDevices],
    rows: list[dict[str, str]],
    requests: list[DeviceRequest],
    place: ReportSubject,
) -> None:
    asked = ", ".join(f"{want.resource}: {want.count}" for want in mine)
    used = [request for request in requests if container in request.users]
    parts = ", ".join(
        f"{request.count} of class {request.kind.device_class} (request {request.name})" for request in used
    )
    claims = ", ".join(dict.fromkeys(row["name"] for row in rows))
    why = "devices are chosen by claims; nodes of this driver don't offer the device plugin's resource"
    if any(len(request.users) > 1 for request in used):
        why += "; init containers use the devices that the others use after them"
    place.changed("request", f"{asked} became {parts} in claim {claims}", why)


def _drop(resources: dict[str, Any], resource: str) -> None:
    for field in ("limits", "requests"):
        amounts = resources.get(field)
        if isinstance(amounts, dict) and resource in amounts:
            del amounts[resource]
            if not amounts:
                del resources[field]


def _drop_zeros(wants: list[WantedDevices], subject: ReportSubject) -> None:
    """Remove counts of 0, which ask for nothing."""
    for want in wants:
        resources = want.container.wire["resources"]
        _drop(resources, want.resource)
        if not resources:
            del want.container.wire["resources"]
        place = subject.below(*want.container.path, "resources")
        place.changed("zero", f"{want.resource}: 0 was taken out", "it asks for nothing, with or without this driver")


def _tolerate(spec: dict[str, Any], resources: list[str], place: ReportSubject) -> None:
    """Add the tolerations that the admission plugin used to add for extended resources."""
    listed = spec.get("tolerations")
    known = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    for resource in resources:
        if any(_tolerates(one, resource) for one in known):
            continue
        row = {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
        known.append(row)
        if isinstance(listed, list):
            listed.append(row)
        else:
            listed = spec["tolerations"] = [row]
        why = "the admission plugin ExtendedResourceToleration added it to pods that ask for this resource"
        place.changed("toleration", f"a toleration of the taint {resource} was added", why, "tolerations")


def _tolerates(row: dict[str, Any], key: str) -> bool:
    if row.get("operator") != "Exists" or row.get("effect") not in {None, "", "NoSchedule"}:
        return False
    return row.get("key") == key or not row.get("key")
