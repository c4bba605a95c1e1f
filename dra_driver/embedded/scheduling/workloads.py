"""Workloads: the pods and claims that controllers and the scheduler create from other objects, as examples need them.

A Deployment becomes as many pods as it has replicas, a Job as many as run at a time (`pod_templates`). A pod whose
limits name an extended resource of a DeviceClass gets a claim, like the one that the scheduler creates. Pure. In: the
objects of a file. Out: pods, claims and the objects that need no controller.
Source: Kubernetes workloads apps/v1 and batch/v1; KEP-5004 (claim name, request name).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, PODS
from dra_driver.embedded.scheduling.extended_requests import extended_requests
from dra_driver.embedded.scheduling.pod_templates import templates_of
from dra_driver.model.wire import Wire

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
        pods = [pod for one in templates_of(wire) for pod in one.pods()] if is_workload(wire) else [wire]
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
