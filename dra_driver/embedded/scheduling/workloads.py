"""Workloads: what controllers and the scheduler make of objects that are not pods yet, as far as an example needs it.

A Deployment becomes as many pods as it has replicas, a Job as many as run at a time. A pod whose limits contain an
extended resource of a DeviceClass becomes a pod with a claim, as the scheduler makes it. Pure. In: the objects of a
file. Out: the objects to create.
Source: Kubernetes workloads apps/v1 and batch/v1; KEP-5004 (claim name, request name).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, PODS
from dra_driver.model.wire import Wire

_PODS_OF = {"Deployment": "replicas", "Job": "parallelism"}
ENTRY = "extended-resources"


def is_workload(document: Wire) -> bool:
    """Return whether pods are made from this object."""
    return document.get("kind") in _PODS_OF


def expand(objects: Iterable[Wire]) -> Iterator[Wire]:
    """Yield pods in place of workloads, and a claim beside each pod that uses extended resources."""
    known = list(objects)
    spec_of = {wire["metadata"]["name"]: wire.get("spec") or {} for wire in known if wire["kind"] == CLASSES.kind}
    classes = {spec["extendedResourceName"]: name for name, spec in spec_of.items() if spec.get("extendedResourceName")}
    for wire in known:
        for one in _pods_of(wire) if is_workload(wire) else [wire]:
            yield from _with_claim(one, classes) if one["kind"] == PODS.kind else [one]


def _pods_of(workload: Wire) -> Iterator[Wire]:
    spec, name = workload["spec"], workload["metadata"]["name"]
    for number in range(spec.get(_PODS_OF[workload["kind"]], 1)):
        metadata = {**(spec["template"].get("metadata") or {}), "name": f"{name}-{number}"}
        yield {"apiVersion": "v1", "kind": PODS.kind, "metadata": metadata, "spec": spec["template"]["spec"]}


def _with_claim(pod: Wire, classes: Mapping[str, str]) -> Iterator[Wire]:
    requests: list[dict[str, Any]] = []
    containers = []
    for index, container in enumerate(pod["spec"].get("containers") or []):
        limits = (container.get("resources") or {}).get("limits") or {}
        wanted = sorted(limits.keys() & classes.keys())
        for number, resource in enumerate(wanted):
            exactly = {"deviceClassName": classes[resource], "count": int(limits[resource])}
            requests.append({"name": f"container-{index}-request-{number}", "exactly": exactly})
        own = [{"name": ENTRY, "request": r["name"]} for r in requests[len(requests) - len(wanted) :]]
        containers.append({**container, "resources": {"claims": own}} if own else container)
    if not requests:
        yield pod
        return
    name = f"{pod['metadata']['name']}-{ENTRY}"
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": CLAIMS.kind,
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
    }
    entries = [*(pod["spec"].get("resourceClaims") or []), {"name": ENTRY, "resourceClaimName": name}]
    yield {**pod, "spec": {**pod["spec"], "containers": containers, "resourceClaims": entries}}
