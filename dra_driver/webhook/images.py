"""Warnings about images: pods with claims whose images need a newer CUDA than some drivers of the cluster support.

In: a Pod, or an object that makes pods, as anyone may have written it, and the fleet. Out: two sentences for each need
that some driver of the fleet does not meet: what is missing, and the selector to paste. The webhook may not read
claims, so it also warns if a claim already asks for such a driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from dra_driver.claims.cuda_requirement import ANNOTATION, VARIABLE, CudaRequirement, cuda_requirements
from dra_driver.model.semver import Semver
from dra_driver.model.wire import Wire
from dra_driver.webhook.fleet import PublishedFleet

_MAX_NEEDS = 4
_MAX_CONTAINERS = 64
_DriverDevices = tuple[Semver, Semver | None, int]  # CUDA version, driver version, number of devices


class ImageAdvisor:
    """Advises on the images of pods. Any thread may ask."""

    def __init__(self, fleet: PublishedFleet, drivers: Collection[str]) -> None:
        self._fleet, self._drivers = fleet, drivers

    def warnings(self, wire: Any, _namespace: str = "") -> list[str]:
        """Return the sentences about a pod or pod template: none if it has no claims or the fleet is not known yet."""
        wire = _relevant_part(pod_of(wire))
        if not wire["spec"]["resourceClaims"] or not self._fleet.is_known:
            return []
        served = list(self._driver_devices())
        found = dict.fromkeys(islice(cuda_requirements(wire), _MAX_NEEDS))
        return [sentence for need in found for sentence in _warnings_about(need, served)]

    def _driver_devices(self) -> Iterator[_DriverDevices]:
        for shape in self._fleet.shapes():
            held = shape.view.attributes.get(shape.view.driver) or {}
            cuda, driver = held.get("cudaDriverVersion"), held.get("driverVersion")
            if shape.view.driver in self._drivers and isinstance(cuda, Semver):
                yield cuda, driver if isinstance(driver, Semver) else None, shape.count


def _warnings_about(need: CudaRequirement, served: list[_DriverDevices]) -> Iterator[str]:
    old = [(cuda, count) for cuda, driver, count in served if not need.is_met_by(cuda, driver)]
    if old:
        short, every = sum(count for _, count in old), sum(count for _, _, count in served)
        yield (
            f"{need.stated_by} needs CUDA {need.version}, but {short} of the cluster's {every} devices have a driver "
            f"that supports less (the oldest CUDA {min(cuda for cuda, _ in old)})"
        )
        yield f"unless its claims already ask for such a driver, add to their selectors: {need.selector}"


def pod_of(wire: Any) -> Wire:
    """Return a pod, or the pod template of a workload or of a CronJob."""
    found = _mapping(wire)
    job = _mapping(_mapping(found.get("spec")).get("jobTemplate")) or found
    return _mapping(_mapping(job.get("spec")).get("template")) or found


def _relevant_part(pod: Any) -> Wire:
    """Return the parts of a pod that matter here: what it states about its CUDA need, and its claims.

    Values of an unexpected type are left out.
    """
    spec, metadata = _mapping(_mapping(pod).get("spec")), _mapping(_mapping(pod).get("metadata"))
    annotation = _mapping(metadata.get("annotations")).get(ANNOTATION)
    lists = {field: [_container(one) for one in _items(spec.get(field))] for field in ("initContainers", "containers")}
    claims = _items(spec.get("resourceClaims"))
    return {"metadata": {"annotations": {ANNOTATION: annotation}}, "spec": lists | {"resourceClaims": claims}}


def _container(one: Wire) -> Wire:
    env = [
        {"name": VARIABLE, "value": entry.get("value")} for entry in _items(one.get("env")) if _is_cuda_variable(entry)
    ]
    return {"name": str(one.get("name")), "env": env}


def _is_cuda_variable(entry: Wire) -> bool:
    return entry.get("name") == VARIABLE


def _mapping(value: Any) -> Wire:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Wire]:
    return [one for one in value[:_MAX_CONTAINERS] if isinstance(one, dict)] if isinstance(value, list) else []
