"""Refusals: the Status objects with which a Kubernetes API server refuses a request.

In: what is wrong. Out: an `ApiError` that carries the HTTP status and the Status object. Nothing is checked here: the
rules and the registry decide what is wrong.
Source: k8s.io/apimachinery api/errors; meta/v1 Status.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dra_driver.base.errors import ApiError
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import Wire


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an object: the field, the reason (`FieldValueInvalid` …) and a message."""

    field: str
    reason: str
    message: str

    def wire(self) -> Wire:
        """Return the cause as a Status contains it."""
        return {"field": self.field, "reason": self.reason, "message": self.message}


class ApiRefusal(ApiError):
    """An answer of the API server that is not a success. The HTTP server sends its `wire()`."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        details: Wire | None = None,
        retry_after_s: float = 0.0,
        continue_token: str = "",
    ) -> None:
        super().__init__(
            _code(reason), message, status=status, retry_after_s=retry_after_s, continue_token=continue_token
        )
        self.reason = reason
        self.details = details

    def wire(self) -> Wire:
        """Return the Status object."""
        answer: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        if self.details:
            answer["details"] = self.details
        return answer


def _code(reason: str) -> str:
    """Return a reason such as `AlreadyExists` as a code such as `already-exists`."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in reason).lstrip("-")


def bad_request(message: str) -> ApiRefusal:
    """Return the refusal (400) of a request that can't be understood."""
    return ApiRefusal(400, "BadRequest", message)


def unauthorized() -> ApiRefusal:
    """Return the refusal (401) of a request whose token is missing or unknown."""
    return ApiRefusal(401, "Unauthorized", "Unauthorized")


def not_found(resource: str, name: str) -> ApiRefusal:
    """Return the refusal (404) for a missing object; `resource` is a name such as `resourceslices.resource.k8s.io`."""
    return ApiRefusal(404, "NotFound", f'{resource} "{name}" not found', details=_details(resource, name))


def unknown_path() -> ApiRefusal:
    """Return the refusal (404) of a path under which nothing is served."""
    return ApiRefusal(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed(verb: str) -> ApiRefusal:
    """Return the refusal (405) of a verb that the path does not support."""
    return ApiRefusal(405, "MethodNotAllowed", f"the server does not allow {verb} on the requested resource")


def already_exists(resource: str, name: str) -> ApiRefusal:
    """Return the refusal (409) of a create because an object of this name exists."""
    return ApiRefusal(409, "AlreadyExists", f'{resource} "{name}" already exists', details=_details(resource, name))


def conflict(resource: str, name: str, why: str = "") -> ApiRefusal:
    """Return the refusal (409) of a write because the object has changed or a precondition has failed."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiRefusal(409, "Conflict", message, details=_details(resource, name))


def expired(wanted: int, oldest: int) -> ApiRefusal:
    """Return the refusal (410) of a watch because the history before `oldest` is gone."""
    return ApiRefusal(410, "Expired", f"too old resource version: {wanted} ({oldest})")


def list_expired(next_token: str) -> ApiRefusal:
    """Return the refusal (410) of an outdated continue token, with the token that continues in the present state."""
    message = "The provided continue parameter is too old to display a consistent list result."
    return ApiRefusal(410, "Expired", message, continue_token=next_token)


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiRefusal:
    """Return the refusal (422) of an object, with everything that is wrong with it."""
    texts = [f"{c.field}: {c.message}" for c in causes]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    full_kind = f"{kind}.{group}" if group else kind
    details = {"name": name, "group": group, "kind": kind, "causes": [c.wire() for c in causes]}
    return ApiRefusal(422, "Invalid", f'{full_kind} "{name}" is invalid: {listed}', details=details)


def unsupported_media_type(content_type: str) -> ApiRefusal:
    """Return the refusal (415) of a patch whose type is not supported."""
    return ApiRefusal(
        415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type!r}"
    )


def _details(resource: str, name: str) -> Wire:
    plural, _, group = resource.partition(".")
    return {"name": name, "group": group, "kind": plural}


# Shape

Shape = Any
ANY = object()
QUANTITY = object()
TIME = object()


@dataclass(frozen=True, slots=True)
class Map:
    """A map from text to values of one type."""

    value: Shape


_GO = {str: "string", int: "int64", bool: "bool"}


def decode(value: Any, shape: Shape, path: str = "") -> Any:
    """Return `value` as a value of the type `shape`. Raises: ApiRefusal 400 with the field whose type is wrong."""
    if shape is ANY:
        return copy.deepcopy(value)
    if isinstance(shape, dict):
        _expect(isinstance(value, dict), value, path, "object")
        return {
            key: decode(value[key], part, f"{path}.{key}" if path else key)
            for key, part in shape.items()
            if value.get(key) is not None
        }
    if isinstance(shape, list):
        _expect(isinstance(value, list), value, path, "array")
        return [decode(item, shape[0], f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(shape, Map):
        _expect(isinstance(value, dict), value, path, "map")
        return {key: decode(item, shape.value, f"{path}[{key}]") for key, item in value.items()}
    if shape is QUANTITY:
        return _quantity(value, path)
    if shape is TIME:
        return _time(value, path)
    is_right = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    _expect(is_right and (shape is not int or -(2**63) <= value < 2**63), value, path, _GO[shape])
    return value


def _time(value: Any, path: str) -> str:
    """Return a time as the server writes it: UTC, in whole seconds."""
    _expect(isinstance(value, str), value, path, "time")
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise bad_request(f'parsing time "{value}" in field {path}: not RFC 3339')
    return parsed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _quantity(value: Any, path: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _expect(isinstance(value, str) or is_number, value, path, "quantity")
    try:
        return str(Quantity.parse(value if isinstance(value, str) else repr(value)))
    except QuantityError as fault:
        raise bad_request(f"unable to parse quantity's suffix or number in field {path}: {fault.message}") from None


def without_empty(value: Any, keep: frozenset[str] = frozenset()) -> Any:
    """Return the value without empty lists and maps in objects, as `omitempty` leaves them out of JSON.

    `keep` names the fields whose values are left unchanged (opaque objects, which belong to drivers).
    """
    if isinstance(value, list):
        return [without_empty(item, keep) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v if k in keep else without_empty(v, keep) for k, v in value.items()}
    return {k: v for k, v in kept.items() if k in keep or not (isinstance(v, dict | list) and not v)}


def _expect(is_right: bool, value: Any, path: str, wanted: str) -> None:
    if not is_right:
        found = {str: "string", bool: "bool", dict: "object", list: "array", type(None): "null"}.get(
            type(value), "number"
        )
        raise bad_request(f"json: cannot unmarshal {found} into field {path or '.'} of type {wanted}")


# Shapes: the fields of resource.k8s.io/v1 objects, as data for `shape.decode`.

_SELECTORS: Shape = [{"cel": {"expression": str}}]
_OPAQUE: Shape = {"driver": str, "parameters": ANY}
_NODE_TERM: Shape = [{"key": str, "operator": str, "values": [str]}]
_NODE_SELECTOR: Shape = {"nodeSelectorTerms": [{"matchExpressions": _NODE_TERM, "matchFields": _NODE_TERM}]}
_TOLERATIONS: Shape = [{"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}]
_COUNTERS: Shape = Map({"value": QUANTITY})

_ATTRIBUTE: Shape = {
    "int": int,
    "bool": bool,
    "string": str,
    "version": str,
    "ints": [int],
    "bools": [bool],
    "strings": [str],
    "versions": [str],
}
_CAPACITY: Shape = {
    "value": QUANTITY,
    "requestPolicy": {
        "default": QUANTITY,
        "validValues": [QUANTITY],
        "validRange": {"min": QUANTITY, "max": QUANTITY, "step": QUANTITY},
    },
}
_DEVICE: Shape = {
    "name": str,
    "attributes": Map(_ATTRIBUTE),
    "capacity": Map(_CAPACITY),
    "consumesCounters": [{"counterSet": str, "counters": _COUNTERS}],
    "nodeName": str,
    "nodeSelector": _NODE_SELECTOR,
    "allNodes": bool,
    "taints": [{"key": str, "value": str, "effect": str, "timeAdded": TIME}],
    "bindsToNode": bool,
    "bindingConditions": [str],
    "bindingFailureConditions": [str],
    "allowMultipleAllocations": bool,
}
SLICE: Shape = {
    "spec": {
        "driver": str,
        "pool": {"name": str, "generation": int, "resourceSliceCount": int},
        "nodeName": str,
        "nodeSelector": _NODE_SELECTOR,
        "allNodes": bool,
        "perDeviceNodeSelection": bool,
        "devices": [_DEVICE],
        "sharedCounters": [{"name": str, "counters": _COUNTERS}],
    }
}

_CHOICE: Shape = {
    "deviceClassName": str,
    "selectors": _SELECTORS,
    "allocationMode": str,
    "count": int,
    "tolerations": _TOLERATIONS,
    "capacity": {"requests": Map(QUANTITY)},
}
CLAIM_SPEC: Shape = {
    "devices": {
        "requests": [
            {"name": str, "exactly": {**_CHOICE, "adminAccess": bool}, "firstAvailable": [{"name": str, **_CHOICE}]}
        ],
        "constraints": [{"requests": [str], "matchAttribute": str, "distinctAttribute": str}],
        "config": [{"requests": [str], "opaque": _OPAQUE}],
    }
}
_CONDITION: Shape = {
    "type": str,
    "status": str,
    "observedGeneration": int,
    "lastTransitionTime": TIME,
    "reason": str,
    "message": str,
}
_RESULT: Shape = {
    "request": str,
    "driver": str,
    "pool": str,
    "device": str,
    "adminAccess": bool,
    "tolerations": _TOLERATIONS,
    "bindingConditions": [str],
    "bindingFailureConditions": [str],
    "shareID": str,
    "consumedCapacity": Map(QUANTITY),
}
_CLAIM_STATUS: Shape = {
    "allocation": {
        "devices": {"results": [_RESULT], "config": [{"source": str, "requests": [str], "opaque": _OPAQUE}]},
        "nodeSelector": _NODE_SELECTOR,
        "allocationTimestamp": TIME,
    },
    "reservedFor": [{"apiGroup": str, "resource": str, "name": str, "uid": str}],
    "devices": [
        {
            "driver": str,
            "pool": str,
            "device": str,
            "shareID": str,
            "conditions": [_CONDITION],
            "data": ANY,
            "networkData": {"interfaceName": str, "ips": [str], "hardwareAddress": str},
        }
    ],
}
CLAIM: Shape = {"spec": CLAIM_SPEC, "status": _CLAIM_STATUS}
TEMPLATE: Shape = {
    "spec": {"metadata": {"labels": Map(str), "annotations": Map(str)}, "spec": CLAIM_SPEC},
}
CLASS: Shape = {
    "spec": {"selectors": _SELECTORS, "config": [{"opaque": _OPAQUE}], "extendedResourceName": str},
}


# Rules: what the API server changes in one kind of object before it is stored, and what it refuses.


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule may depend on besides the object. `now` is in RFC 3339 with whole seconds."""

    minor: int
    gates: frozenset[str]
    now: str
    namespace_labels: Callable[[str], Mapping[str, str]]


@dataclass(slots=True)
class Faults:
    """Collects every fault of one object."""

    causes: list[Cause] = field(default_factory=list)

    def invalid(self, path: str, value: Any, why: str) -> None:
        """Record a value that is not allowed."""
        self.causes.append(Cause(path, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}"))

    def required(self, path: str, why: str = "") -> None:
        """Record a value that is missing."""
        self.causes.append(Cause(path, "FieldValueRequired", f"Required value{': ' + why if why else ''}"))

    def too_many(self, path: str, count: int, maximum: int) -> None:
        """Record a list or map that is too long."""
        self.causes.append(
            Cause(
                path, "FieldValueTooMany", f"Too many: {count}: must have at most {maximum} item{'s' * (maximum != 1)}"
            )
        )

    def too_long(self, path: str, maximum: int) -> None:
        """Record a text that is too long."""
        self.causes.append(Cause(path, "FieldValueTooLong", f"Too long: may not be more than {maximum} bytes"))

    def duplicate(self, path: str, value: Any) -> None:
        """Record a key that occurs twice."""
        self.causes.append(Cause(path, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}"))

    def forbidden(self, path: str, why: str) -> None:
        """Record a field that must not be set."""
        self.causes.append(Cause(path, "FieldValueForbidden", f"Forbidden: {why}"))

    def unsupported(self, path: str, value: Any, known: tuple[str, ...]) -> None:
        """Record a value that is not one of the supported ones."""
        listed = ", ".join(f'"{k}"' for k in known)
        message = f"Unsupported value: {_shown(value)}: supported values: {listed}"
        self.causes.append(Cause(path, "FieldValueNotSupported", message))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _unchanged(new: Wire, old: Wire | None, context: RuleContext) -> None:
    """Leave the object as it is."""


def _finished(wire: Wire) -> None:
    """Leave the object as it is."""


def _no_faults(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    """Accept every object."""


@dataclass(frozen=True, slots=True)
class KindRules:
    """The rules of one kind. If `shape` is None, every field is kept (for kinds that are only stored)."""

    shape: Shape | None = None
    prepare: Callable[[Wire, Wire | None, RuleContext], None] = _unchanged
    check: Callable[[Wire, Wire | None, RuleContext, Faults], None] = _no_faults
    check_status: Callable[[Wire, Wire, RuleContext, Faults], None] = _no_faults
    finish: Callable[[Wire], None] = _finished
