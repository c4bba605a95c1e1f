"""The shapes of Kubernetes objects, and the check of what users wrote against them, before any other code reads it.

In: an object as a user wrote it. Out: nothing, or an error that names the invalid field. Fields that are null are
removed, as the API server does; fields that this program does not read are not checked. The fields of resource.k8s.io
objects are those that the API has (`simulator.shapes`, `fields`); of pods and nodes there are those
that this program reads.
Source: Kubernetes API resource/v1 and core/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import Wire
from dra_driver.simulator import shapes
from dra_driver.simulator.shapes import ANY, CLASS, QUANTITY, TIME, Map
from dra_driver.tools.world.documents import Document, Step, shown
from dra_driver.tools.world.fields import FieldFault, as_v1, field_faults, has_fields
from dra_driver.tools.world.positions import place_of_field

# Fields of resource.k8s.io objects that an API server keeps only with alpha gates of Kubernetes 1.36 and 1.37.

_OVERHEAD = {"perPod": QUANTITY, "perContainer": QUANTITY}
_MAPPING = {"capacityKey": str, "capacityMultiplier": QUANTITY, "deviceMultiplier": QUANTITY}
_DEVICE = {
    "nodeAllocatableResources": Map({"mapping": _MAPPING, "overhead": _OVERHEAD}),
    "nodeAllocatableResourceMappings": Map({"capacityKey": str, "allocationMultiplier": QUANTITY}),  # 1.36
    "consumesCounters": [{"compatibilityGroups": [str]}],
}
_SLICE = {"spec": {"partitionTypeAttribute": str, "skipNodeOperations": [str], "devices": [_DEVICE]}}
_WISH = {"derivedAttributes": [{"name": str, "expression": str}]}
_CLAIM_SPEC = {"devices": {"requests": [{"exactly": _WISH, "firstAvailable": [_WISH]}]}}
_CLAIM_STATUS = {"allocation": {"devices": {"results": [{"skipNodeOperations": [str]}]}}}


def _with(known: Any, more: Any) -> Any:
    """Return `known` with the fields of `more` added at any depth."""
    if isinstance(known, dict):
        return known | {name: _with(known[name], one) if name in known else one for name, one in more.items()}
    return [_with(known[0], more[0])]


CLAIM = _with(shapes.CLAIM, {"spec": _CLAIM_SPEC, "status": _CLAIM_STATUS})
TEMPLATE = _with(shapes.TEMPLATE, {"spec": {"spec": _CLAIM_SPEC}})
SLICE = _with(shapes.SLICE, _SLICE)


_MAX_VALID = 65_536


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

# In the form of `simulator.shapes`:

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


class ShapeChecker:
    """Checks objects. A value that is part of several objects is checked once."""

    def __init__(self) -> None:
        # Valid values by the id() of their shape and their own; they are kept so that their ids stay unique.
        self._valid: dict[int, dict[int, Any]] = {}

    def knows(self, kind: str) -> bool:
        """Return whether there is a shape for a kind."""
        return kind in OBJECTS

    def check(self, kind: str, wire: Any, at: str) -> None:
        """Check an object of a kind; `at` is where it was found. Raises: InputError("input.object")."""
        self._check(OBJECTS[kind], wire, f"{at}: {kind} {_name(wire)}", "")

    def check_devices(self, wire: Any, at: str) -> None:
        """Check `spec.devices` of a claim. Raises: InputError("input.object")."""
        self._check(DEVICES, wire, at, "")

    def _check(self, shape: Shape, value: Any, at: str, path: str) -> None:
        match shape:
            case ObjectShape():
                self._record(shape, value, at, path)
            case MapShape():
                self._named(shape, _typed(value, dict, "a mapping", at, path), at, path)
            case ListShape():
                for number, entry in enumerate(_typed(value, list, "a list", at, path)):
                    self._check(shape.of, entry, at, f"{path}[{number}]")
            case ScalarShape():
                if type(value) not in shape.types:
                    raise _fault(shape.what, value, at, path)
                if shape.is_quantity:
                    _check_quantity(value, at, path)

    def _record(self, shape: ObjectShape, value: Any, at: str, path: str) -> None:
        held = _typed(value, dict, "a mapping", at, path)
        for name in [name for name, inner in held.items() if inner is None]:
            del held[name]
        for name in shape.required - held.keys():
            raise InputError("object", f"{at}: {path}.{name} is missing".replace(": .", ": "))
        for name, inner in held.items():
            if (of := shape.fields.get(name)) is not None:
                self._check(of, inner, at, f"{path}.{name}")

    def _named(self, shape: MapShape, held: dict[Any, Any], at: str, path: str) -> None:
        valid = self._valid.setdefault(id(shape), {})
        if valid.keys() >= set(map(id, held.values())) and all(type(name) is str for name in held):
            return
        for name, inner in held.items():
            if type(name) is not str:
                raise _fault("named by texts", name, at, path)
            self._check(shape.of, inner, at, f"{path}.{name[:80]}")
            if len(valid) < _MAX_VALID:
                valid[id(inner)] = inner


def _typed(value: Any, wanted: type, what: str, at: str, path: str) -> Any:
    if type(value) is not wanted:
        raise _fault(what, value, at, path)
    return value


def _check_quantity(value: Any, at: str, path: str) -> None:
    try:
        Quantity.parse(value if isinstance(value, str) else str(value))
    except QuantityError as error:
        raise InputError("object", f"{at}: {path.lstrip('.')}: {error.message}") from error


def _fault(what: str, value: Any, at: str, path: str) -> InputError:
    return InputError("object", f"{at}: {path.lstrip('.') or 'it'} is not {what} but {type(value).__name__}")


def _name(wire: Any) -> str:
    metadata = wire.get("metadata") if isinstance(wire, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name[:253] if isinstance(name, str) else "?"


# Refuse fields that the API does not have, and find the line and column of a fault.

_SHAPES: dict[str, Any] = {
    "ResourceClaim": CLAIM,
    "ResourceClaimTemplate": TEMPLATE,
    "DeviceClass": CLASS,
    "ResourceSlice": SLICE,
}
_ALLOWED_AROUND = frozenset({"apiVersion", "kind", "metadata", "status"})
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[]+)")


def refuse_unknown(document: Document, wire: Any) -> None:
    """Refuse an object with an unknown field, or with a value of the wrong type. Raises: InputError("input.object")."""
    if has_fields(document.kind, document.wire.get("apiVersion")):
        for fault in field_faults(document.kind, wire):
            raise _unknown_field(document, fault)
    shape = _SHAPES.get(document.kind)
    if shape is None:
        return
    for path, known in _unknown({key: one for key, one in wire.items() if key not in _ALLOWED_AROUND}, shape, ()):
        raise _unknown_field(document, FieldFault(path, known=tuple(known)))


def refuse_unknown_in_device(wire: Wire, at: str) -> None:
    """Refuse a Device with a field that the API does not have. Raises: InputError("input.object")."""
    for path, known in _unknown(wire, SLICE["spec"]["devices"][0], ()):
        raise InputError("object", f"{at}.{_written(path)} is not a field of the API", hint=_instead(path, known))


def _instead(path: tuple[Step, ...], known: Sequence[str]) -> str:
    near = get_close_matches(str(path[-1]), known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known)) or 'nothing'}"


def checked(document: Document, checker: ShapeChecker) -> Wire:
    """Check a document, and return its object in v1. Raises: InputError with line and column."""
    try:
        wire = as_v1(document.wire, f"{shown(document.origin)}: {document.kind} {document.name}")
        if checker.knows(document.kind):
            checker.check(document.kind, wire, shown(document.origin))
    except InputError as fault:
        raise with_place(document, fault) from None
    refuse_unknown(document, wire)
    return wire


def _unknown_field(document: Document, fault: FieldFault) -> InputError:
    where = f"{place_of_field(document, fault.path)}: {document.kind} {document.name}: {_written(fault.path)}"
    if fault.wanted:
        return InputError("object", f"{where} is not {fault.wanted}")
    return InputError("object", f"{where} is not a field of the API", hint=_instead(fault.path, fault.known))


def with_place(document: Document, fault: InputError) -> InputError:
    """Return a fault about a document with the line and column of the field that it names."""
    head = f"{shown(document.origin)}: {document.kind} {document.name}: "
    if fault.code not in {"input.object", "input.bad-config"} or not fault.message.startswith(head):
        return fault
    rest = fault.message.removeprefix(head)
    path = tuple(
        int(match[1]) if match[1] else match[2] for match in _STEP.finditer(re.split(r"[: ]", rest, maxsplit=1)[0])
    )
    text = f"{place_of_field(document, path)}: {document.kind} {document.name}: {rest}"
    return InputError(fault.code.removeprefix("input."), text, hint=fault.hint)


def _unknown(value: Any, shape: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], list[str]]]:
    """Yield the path of each field that the shape does not have, with the fields that it has at that place."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in value.items():
            if key not in shape:
                yield (*path, str(key)), list(shape)
            else:
                yield from _unknown(inner, shape[key], (*path, key))
    elif isinstance(shape, list) and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unknown(inner, shape[0], (*path, number))
    elif isinstance(shape, Map) and isinstance(value, dict):
        for key, inner in value.items():
            yield from _unknown(inner, shape.value, (*path, str(key)))


def _written(path: tuple[Step, ...]) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".")
