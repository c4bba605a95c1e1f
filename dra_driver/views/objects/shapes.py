"""The shapes of Kubernetes objects: the types of their fields, and which fields must be there.

In: the fields of resource.k8s.io objects as the API has them (`embedded.api_rules.shapes`, `newest_fields`), and those
of pods and nodes as far as this program reads them. Out: a `Shape` for each kind, by which `shape_checker` checks
objects.
Source: Kubernetes API resource/v1 and core/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.embedded.api_rules.shape import ANY, QUANTITY, TIME, Map
from dra_driver.embedded.api_rules.shapes import CLASS
from dra_driver.views.objects.newest_fields import CLAIM, SLICE, TEMPLATE


@dataclass(frozen=True, slots=True, eq=False)
class ScalarShape:
    """A single value that has one of several types; `what` describes them for people."""

    what: str
    types: frozenset[type]
    is_quantity: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ListShape:
    """A list of values of one shape."""

    of: Shape


@dataclass(frozen=True, slots=True, eq=False)
class MapShape:
    """A mapping whose keys are chosen by the object's author."""

    of: Shape


@dataclass(frozen=True, slots=True, eq=False)
class ObjectShape:
    """A mapping with these fields; other fields are ignored."""

    fields: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()


Shape = ScalarShape | ListShape | MapShape | ObjectShape

_SCALARS: dict[Any, ScalarShape] = {
    str: ScalarShape("a text", frozenset({str})),
    int: ScalarShape("a whole number", frozenset({int})),
    bool: ScalarShape("true or false", frozenset({bool})),
    QUANTITY: ScalarShape("a quantity", frozenset({str, int, float}), is_quantity=True),
}
_UNCHECKED = (ANY, TIME)  # this program only needs to know whether there is a time

# In the form of `embedded.api_rules.shapes`:

_META = {
    "name": str,
    "namespace": str,
    "uid": str,
    "labels": Map(str),
    "annotations": Map(str),
    "ownerReferences": [{"kind": str, "name": str, "controller": bool}],
}
_EXPRESSIONS = [{"key": str, "operator": str, "values": [str]}]
_NODE_SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}]}
_CONTAINERS = [
    {"name": str, "resources": {"limits": Map(QUANTITY), "requests": Map(QUANTITY), "claims": [{"name": str}]}}
]
_POD = {
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "schedulingGates": [{"name": str}],
    "nodeName": str,
    "nodeSelector": Map(str),
    "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _NODE_SELECTOR}},
    "resourceClaims": [{"name": str, "resourceClaimName": str, "resourceClaimTemplateName": str}],
}
_CONDITIONS = [{"type": str, "status": str}]
_HEALTH = {"resourceID": str, "health": str}
_POD_STATUS = {
    "phase": str,
    "conditions": _CONDITIONS,
    "extendedResourceClaimStatus": {"resourceClaimName": str},
    "resourceClaimStatuses": [{"name": str, "resourceClaimName": str}],
    "containerStatuses": [{"name": str, "allocatedResourcesStatus": [{"resources": [_HEALTH]}]}],
}
_NODE = {"unschedulable": bool, "taints": [{"key": str, "effect": str, "value": str}]}
_FIELDS: Mapping[str, Any] = {
    "ResourceSlice": SLICE,
    "ResourceClaim": CLAIM,
    "ResourceClaimTemplate": TEMPLATE,
    "DeviceClass": CLASS,
    "Node": {"spec": _NODE, "status": {"allocatable": Map(QUANTITY), "conditions": _CONDITIONS}},
    "Pod": {"spec": _POD, "status": _POD_STATUS},
}
_REQUIRED_ANYWHERE = frozenset(
    f"{kind}[].{name}" for kind in ("matchExpressions", "matchFields") for name in ("key", "operator")
) | {"selectors[].cel", "cel.expression"}
_REQUEST = "devices.requests[].name", "devices.requests[].firstAvailable[].name"
# A claim or pod that has not been created yet may have only a generateName.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "ResourceSlice": (
        "metadata.name",
        "spec",
        "spec.driver",
        "spec.pool",
        "spec.pool.name",
        "spec.sharedCounters[].name",
        "spec.devices[].name",
        "spec.devices[].consumesCounters[].counterSet",
    ),
    "ResourceClaim": (
        *(f"spec.{path}" for path in _REQUEST),
        *(f"status.allocation.devices.results[].{name}" for name in ("request", "driver", "pool", "device")),
        "status.reservedFor[].name",
    ),
    "ResourceClaimTemplate": ("metadata.name", "spec", "spec.spec", *(f"spec.spec.{path}" for path in _REQUEST)),
    "DeviceClass": ("metadata.name",),
    "Node": ("metadata.name", "spec.taints[].key", "spec.taints[].effect"),
    "Pod": (
        "spec",
        "spec.resourceClaims[].name",
        "spec.containers[].resources.claims[].name",
        "spec.initContainers[].resources.claims[].name",
        "status.resourceClaimStatuses[].name",
    ),
}


def _shape_of(fields: Any, required: frozenset[str], path: str = "") -> Shape:
    """Return the shape of a value at a path with these fields; `required` are the paths of the required fields."""
    if isinstance(fields, dict):
        paths = {name: f"{path}.{name}".lstrip(".") for name, of in fields.items()}
        checked = {name: of for name, of in fields.items() if of not in _UNCHECKED}
        return ObjectShape(
            {name: _shape_of(of, required, paths[name]) for name, of in checked.items()},
            frozenset(name for name, at in paths.items() if _is_required(at, required)),
        )
    if isinstance(fields, list):
        return ListShape(_shape_of(fields[0], required, f"{path}[]"))
    if isinstance(fields, Map):
        return MapShape(_shape_of(fields.value, required, f"{path}{{}}"))
    return _SCALARS[fields]


def _is_required(path: str, required: frozenset[str]) -> bool:
    return path in required or ".".join(path.split(".")[-2:]) in _REQUIRED_ANYWHERE


OBJECTS: Mapping[str, Shape] = {
    kind: _shape_of({"metadata": _META, **fields}, frozenset(("metadata", *_REQUIRED[kind])))
    for kind, fields in _FIELDS.items()
}
DEVICES = _shape_of(CLAIM["spec"]["devices"], frozenset(path.removeprefix("devices.") for path in _REQUEST))
"""The shape of `spec.devices` of a claim."""
