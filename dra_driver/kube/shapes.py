"""Check that an object of the API server has the shape of its kind, as far as this driver reads it.

In: a decoded object. Out: nothing, or one clear error that names the field. Code that needs a field must handle its
absence; a field that is present has the right type. A server that sends wrong objects, or a proxy that mixes up
answers, then causes an error here instead of a crash somewhere else.
"""

from __future__ import annotations

from typing import Any

from dra_driver.kube.answers import bad_answer
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import ClaimWire, SliceWire, Wire

_NAME_CHARACTERS = 253
_NOUNS = {str: "a string", int: "a whole number", bool: "true or false"}


def _check(value: Any, shape: Any, where: str) -> None:
    """Raise ApiError("api.bad-answer") for the first part of a value that does not have its shape."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _fault(where, "an object", value)
        for key, inner in shape.items():
            if key is ...:
                for name, field in value.items():
                    _check(field, inner, f"{where}.{name}")
                continue
            name = key.removesuffix("!")
            field = value.get(name)
            if field is not None or key.endswith("!"):
                _check(field, inner, f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _fault(where, "a list", value)
        for number, entry in enumerate(value):
            _check(entry, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (shape is int and isinstance(value, bool)):
        raise _fault(where, _NOUNS[shape], value)


def _fault(where: str, expected: str, found: Any) -> ApiError:
    noun = {dict: "an object", list: "a list", type(None): "nothing"}.get(type(found)) or repr(found)[:50]
    return bad_answer(f"{where} should be {expected}, the server sent {noun}")


# A dict stands for an object with these fields (with `...`, for one with any fields that all have this shape), a list
# for a list of such values; "!" marks a required field.
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
    "spec": {},  # it decides nothing on a node
    "status": {"allocation": _ALLOCATION, "reservedFor": [{"name": str, "uid": str}], "devices": [{}]},
}
_NODE = {"metadata!": _METADATA, "spec": {}, "status": {"allocatable": {}, "capacity": {}, "nodeInfo": {}}}


def check_slice(wire: SliceWire, *, is_stored: bool = True) -> None:
    """Check a ResourceSlice; one that was not stored has no resourceVersion. Raises: ApiError("api.bad-answer")."""
    _check(wire, _SLICE, "ResourceSlice")
    metadata = wire["metadata"]
    if is_stored:
        _check(metadata.get("resourceVersion"), str, "ResourceSlice.metadata.resourceVersion")
    if max(len(metadata.get(name) or "") for name in ("name", "uid", "resourceVersion")) > _NAME_CHARACTERS:
        raise bad_answer(
            f"a ResourceSlice has a name, uid or resourceVersion of more than {_NAME_CHARACTERS} characters"
        )


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
