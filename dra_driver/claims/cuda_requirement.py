"""The CUDA version that a pod's images need, as far as the pod states it.

In: a pod, or a claim with an annotation. Out: a `CudaRequirement`, whether a driver meets it, and the selector for
devices whose driver does. The variable NVIDIA_REQUIRE_CUDA, of the image or of the pod, states an image's need; only
the pod's own is seen here. The annotation gpu.nvidia.com/cuda-required states it for images without the variable.

Source: NVIDIA Container Toolkit: constraints between commas must all hold, those between blanks are alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_driver.model.names import NVIDIA_DRIVER
from dra_driver.model.semver import Semver, SemverError, normalize
from dra_driver.model.wire import Wire

VARIABLE, ANNOTATION = "NVIDIA_REQUIRE_CUDA", "gpu.nvidia.com/cuda-required"
_NUMBERS = r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}"
_CONSTRAINT = re.compile(rf"(?P<name>cuda|driver)(?P<relation>>=|<=|==|!=|=|<|>)(?P<version>{_NUMBERS})")
_ORDINARY = re.compile(_NUMBERS)
_MAX_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class CudaRequirement:
    """A need: the lowest CUDA version, what states it, and the alternatives, each a list of constraints."""

    version: str
    stated_by: str
    alternatives: tuple[tuple[str, ...], ...]

    @property
    def selector(self) -> str:
        """The CEL expression that matches only devices whose driver is new enough."""
        version = normalize(self.version)
        return f'device.attributes["{NVIDIA_DRIVER}"].cudaDriverVersion.compareTo(semver("{version}")) >= 0'

    def is_met_by(self, cuda: Semver, driver: Semver | None) -> bool:
        """Return whether a driver meets the need. What can't be judged here, such as a brand, counts as met."""
        known = {"cuda": cuda, "driver": driver}
        return any(all(_holds(one, known) for one in alternative) for alternative in self.alternatives)


def cuda_requirements(wire: Wire) -> Iterator[CudaRequirement]:
    """Yield the needs that a pod, or the metadata of another object, states."""
    annotations = (wire.get("metadata") or {}).get("annotations") or {}
    stated = annotations.get(ANNOTATION) if isinstance(annotations, Mapping) else None
    if isinstance(stated, str) and _ORDINARY.fullmatch(stated):
        yield CudaRequirement(stated, f"annotation {ANNOTATION}", ((f"cuda>={stated}",),))
    spec = wire.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for entry in container.get("env") or ():
            if entry.get("name") == VARIABLE and isinstance(entry.get("value"), str):
                yield from _of_variable(entry["value"], f"container {container.get('name')}: {VARIABLE}")


def _of_variable(text: str, stated_by: str) -> Iterator[CudaRequirement]:
    alternatives = tuple(tuple(part.split(",")) for part in text[:_MAX_CHARACTERS].split())
    least = [
        found["version"]
        for alternative in alternatives
        for one in alternative
        if (found := _CONSTRAINT.fullmatch(one)) and found["name"] == "cuda" and found["relation"] in {">=", ">", "="}
    ]
    if least:
        yield CudaRequirement(min(least, key=_version), stated_by, alternatives)


def _version(text: str) -> Semver:
    return Semver.parse(normalize(text))


def _holds(constraint: str, known: Mapping[str, Semver | None]) -> bool:
    found = _CONSTRAINT.fullmatch(constraint)
    have = known[found["name"]] if found else None
    if found is None or have is None:
        return True
    try:
        wanted = _version(found["version"])
    except SemverError:
        return True
    order = have.compare(wanted)
    holds = {
        ">=": order >= 0, "<=": order <= 0, ">": order > 0, "<": order < 0, "!=": order != 0,
    }  # fmt: skip
    return holds.get(found["relation"], order == 0)
