"""Check that an object of the API server has the shape of its kind, as far as this driver reads it.

In: a decoded object. Out: nothing, or one clear error that names the field. Whoever needs a field must handle its
absence; a field that is present has the right type. A server that sends wrong objects, or a proxy that mixes up
answers, then causes an error here instead of a crash somewhere else.
"""

from __future__ import annotations

from typing import Any

from dra_driver.kube.answers import bad_answer
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import ClaimWire, SliceWire, Wire

# A dict: an object with these fields, `...` for all others. A list: a list of such. "!": the field is required.
_METADATA = {"name!": str, "uid!": str, "resourceVersion": str, "labels": {...: str}, "annotations": {...: str}}
_DEVICE = {
    "name!": str,
    "attributes": {...: {}},
    "capacity": {...: {}},
    "taints": [{"key": str, "value": str, "effect": str}],
    "consumesCounters": [{"counterSet": str, "counters": {...: {}}}],
}
_SLICE = {
    "metadata!": _METADATA,
    "spec!": {
        "driver!": str,
        "nodeName": str,
        "pool!": {"name!": str, "generation": int, "resourceSliceCount": int},
        "devices": [_DEVICE],
        "sharedCounters": [{"name": str, "counters": {...: {}}}],
    },
}
_RESULT = {"request": str, "driver!": str, "pool!": str, "device!": str, "shareID": str, "adminAccess": bool}
_ALLOCATION = {"devices": {"results": [_RESULT], "config": [{}]}, "nodeSelector": {}}
_CLAIM = {
    "metadata!": {**_METADATA, "namespace!": str},
    "spec": {"devices": {"requests": [{"name": str}], "config": [{}], "constraints": [{}]}},
    "status": {"allocation": _ALLOCATION, "reservedFor": [{"name": str, "uid": str}], "devices": [{}]},
}
_NODE = {"metadata!": _METADATA, "spec": {}, "status": {"allocatable": {}, "capacity": {}, "nodeInfo": {}}}
_NOUNS = {str: "a text", int: "a whole number", bool: "true or false"}


def check_slice(wire: SliceWire, *, is_stored: bool = True) -> None:
    """Check a ResourceSlice; one that was not stored has no resourceVersion. Raises: ApiError("api.bad-answer")."""
    _check(wire, _SLICE, "ResourceSlice")
    if is_stored:
        _check(wire["metadata"].get("resourceVersion"), str, "ResourceSlice.metadata.resourceVersion")


def check_claim(wire: ClaimWire, namespace: str, name: str) -> None:
    """Check a ResourceClaim, and that it is the requested one. Raises: ApiError("api.bad-answer")."""
    _check(wire, _CLAIM, f"ResourceClaim {namespace}/{name}")
    found = wire["metadata"]["namespace"], wire["metadata"]["name"]
    if found != (namespace, name):
        raise bad_answer(f"asked for ResourceClaim {namespace}/{name}, the server answered with {'/'.join(found)}")


def check_node(wire: Wire, name: str) -> None:
    """Check a Node, and that it is the requested one. Raises: ApiError("api.bad-answer")."""
    _check(wire, _NODE, f"Node {name}")
    if wire["metadata"]["name"] != name:
        raise bad_answer(f"asked for Node {name}, the server answered with {wire['metadata']['name']}")


def _check(value: Any, shape: Any, where: str) -> None:
    """Check a value; where it is at fault is worked out only for one that is, because that takes longer."""
    if not _is_of(value, shape):
        _refuse(value, shape, where)


def _is_of(value: Any, shape: Any) -> bool:
    if shape is str:
        return isinstance(value, str)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(_has(value, key, inner) for key, inner in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(_is_of(one, shape[0]) for one in value)
    return isinstance(value, shape) and not (shape is int and isinstance(value, bool))


def _has(value: dict[str, Any], key: Any, inner: Any) -> bool:
    """Return whether the field of that key, or every field if the key is `...`, is of its shape."""
    if key is ...:
        return all(_is_of(one, inner) for one in value.values())
    if key[-1] == "!":
        return _is_of(value.get(key[:-1]), inner)
    found = value.get(key)
    return found is None or _is_of(found, inner)


def _refuse(value: Any, shape: Any, where: str) -> None:
    """Raise ApiError for the first part of a value that is not of its shape."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _fault(where, "an object", value)
        for key, inner in shape.items():
            if key is ...:
                for name, one in value.items():
                    _refuse(one, inner, f"{where}.{name}")
                continue
            name = key.removesuffix("!")
            found = value.get(name)
            if found is not None or key.endswith("!"):
                _refuse(found, inner, f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _fault(where, "a list", value)
        for number, one in enumerate(value):
            _refuse(one, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
        raise _fault(where, _NOUNS[shape], value)


def _fault(where: str, expected: str, found: Any) -> ApiError:
    noun = {dict: "an object", list: "a list", type(None): "nothing"}.get(type(found)) or repr(found)[:50]
    return bad_answer(f"{where} should be {expected}, the server sent {noun}")
