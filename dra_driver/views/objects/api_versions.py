"""API versions: objects of resource.k8s.io in the form of v1, whatever version they were written for.

In: an object. Out: the same object in v1, converted as the API server converts it; or an error for a version that no
supported server serves, or for a field in the place where an older version had it.
Source: Kubernetes resource/v1beta1 conversion (a request's fields move under `exactly`, a device's leave `basic`);
v1beta2 has v1's shape; v1alpha2 and v1alpha3 objects are not served since 1.32 and 1.33.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

_GROUP = "resource.k8s.io/"
_V1, _BASIC = "v1", "v1beta1"
_SAME_SHAPE = frozenset({_V1, "v1beta2"})
_EXACT = frozenset(
    {"deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"}
)
_KINDS = frozenset({"ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"})
_LISTED = ("v1", "v1beta2", "v1beta1")


def as_v1(wire: Wire, at: str) -> Wire:
    """Return an object in v1. Raises: InputError("input.api-version", "input.object")."""
    kind, version = wire.get("kind"), wire.get("apiVersion")
    if kind not in _KINDS or version is None:
        return wire
    if not isinstance(version, str) or not version.startswith(_GROUP):
        raise InputError("api-version", f"{at}: apiVersion {version!r} is not {_GROUP}v1")
    short = version.removeprefix(_GROUP)
    if short == _BASIC:
        return {**_converted(wire), "apiVersion": f"{_GROUP}{_V1}"}
    if short not in _SAME_SHAPE:
        raise InputError(
            "api-version",
            f"{at}: apiVersion {version} is not served by Kubernetes 1.34 and newer",
            hint=f"write it as {_GROUP}v1; {', '.join(_LISTED)} are read here",
        )
    _refuse_old_shapes(wire, at)
    return wire


def _refuse_old_shapes(wire: Wire, at: str) -> None:
    """Refuse fields in the places where v1beta1 had them, because in v1 a server drops them."""
    for number, request in enumerate(_requests(wire)):
        old = sorted(_EXACT & request.keys()) if isinstance(request, dict) else []
        if old:
            path = f"{_path_of_requests(wire)}[{number}].{old[0]}"
            raise InputError(
                "object", f"{at}: {path}: in v1 this field is under `exactly:`", hint="v1beta1 had it beside `name:`"
            )
    for number, device in enumerate(_devices(wire)):
        if isinstance(device, dict) and "basic" in device:
            raise InputError("object", f"{at}: spec.devices[{number}].basic: in v1 its fields are beside `name:`")


def _converted(wire: Wire) -> Wire:
    """Return an object of v1beta1 in the shape of v1."""
    made = dict(wire)
    spec = wire.get("spec")
    if not isinstance(spec, dict):
        return made
    if wire["kind"] == "ResourceSlice":
        devices = {"devices": [_flat(one) for one in _list(spec["devices"])]} if "devices" in spec else {}
        made["spec"] = {**spec, **devices}
    elif wire["kind"] == "ResourceClaim":
        made["spec"] = _claim_spec(spec)
    elif wire["kind"] == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        made["spec"] = {**spec, "spec": _claim_spec(spec["spec"])}
    return made


def _claim_spec(spec: Wire) -> Wire:
    devices = spec.get("devices")
    if not isinstance(devices, dict) or "requests" not in devices:
        return spec
    requests = [_exactly(one) for one in _list(devices["requests"])]
    return {**spec, "devices": {**devices, "requests": requests}}


def _exactly(request: object) -> object:
    if not isinstance(request, dict):
        return request
    inner = {name: value for name, value in request.items() if name in _EXACT}
    rest = {name: value for name, value in request.items() if name not in _EXACT}
    return {**rest, "exactly": inner} if inner else rest


def _flat(device: object) -> object:
    if not isinstance(device, dict) or not isinstance(device.get("basic"), dict):
        return device
    return {**{name: value for name, value in device.items() if name != "basic"}, **device["basic"]}


def _requests(wire: Wire) -> Iterator[object]:
    spec = wire.get("spec")
    if wire["kind"] == "ResourceClaimTemplate":
        spec = spec.get("spec") if isinstance(spec, dict) else None
    if wire["kind"] in {"ResourceClaim", "ResourceClaimTemplate"} and isinstance(spec, dict):
        devices = spec.get("devices")
        yield from _list(devices.get("requests")) if isinstance(devices, dict) else ()


def _path_of_requests(wire: Wire) -> str:
    return "spec.devices.requests" if wire["kind"] == "ResourceClaim" else "spec.spec.devices.requests"


def _devices(wire: Wire) -> list[object]:
    spec = wire.get("spec")
    return _list(spec.get("devices")) if wire["kind"] == "ResourceSlice" and isinstance(spec, dict) else []


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
