"""Find configs and selectors in claims, templates and classes, in every version of their API.

Pure. In: an object as the API server sends it. Out: its configs and selectors with their field paths. Anything that
does not have the expected shape is skipped: the API server's own validation handles that.
Source: Kubernetes API resource.k8s.io v1, v1beta2 and v1beta1 (where a request has no `exactly`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """One opaque config: its parameters and their path."""

    path: str
    driver: str
    parameters: Any


@dataclass(frozen=True, slots=True)
class SelectorText:
    """One CEL selector: its path, and the class of the devices (for a class, the class itself)."""

    path: str
    expression: str
    class_name: str
    is_first: bool
    is_last: bool


def opaque_configs(kind: str, obj: Any) -> Iterator[OpaqueConfig]:
    """Yield the opaque configs of an object, whatever their driver."""
    at, holder = device_part(kind, obj)
    for index, entry in enumerate(items(holder.get("config"))):
        opaque = mapping(entry.get("opaque"))
        if isinstance(opaque.get("driver"), str):
            yield OpaqueConfig(f"{at}config[{index}].opaque.parameters", opaque["driver"], opaque.get("parameters"))


def selectors(kind: str, obj: Any) -> Iterator[SelectorText]:
    """Yield the CEL selectors of an object."""
    at, holder = device_part(kind, obj)
    if kind == "DeviceClass":
        name = mapping(mapping(obj).get("metadata")).get("name")
        yield from _of_request(holder, at, str(name or ""))
        return
    for index, request in enumerate(items(holder.get("requests"))):
        where = f"{at}requests[{index}]."
        for field in ("exactly", "firstAvailable"):
            value = request.get(field)
            for number, part in enumerate(items(value) if field == "firstAvailable" else [mapping(value)]):
                suffix = f"{field}[{number}]." if field == "firstAvailable" else f"{field}."
                yield from _of_request(part, where + suffix, _class_of(part))
        yield from _of_request(request, where, _class_of(request))


def _of_request(request: Mapping[str, Any], at: str, class_name: str) -> Iterator[SelectorText]:
    entries = items(request.get("selectors"))
    for index, entry in enumerate(entries):
        expression = mapping(entry.get("cel")).get("expression")
        if isinstance(expression, str):
            path = f"{at}selectors[{index}]"
            yield SelectorText(path, expression, class_name, index == 0, index == len(entries) - 1)


def device_part(kind: str, obj: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the part that holds configs and requests (or selectors), and its path."""
    spec = mapping(mapping(obj).get("spec"))
    if kind == "DeviceClass":
        return "spec.", spec
    if kind == "ResourceClaimTemplate":
        return "spec.spec.devices.", mapping(mapping(spec.get("spec")).get("devices"))
    return "spec.devices.", mapping(spec.get("devices"))


def _class_of(request: Mapping[str, Any]) -> str:
    name = request.get("deviceClassName")
    return name if isinstance(name, str) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, empty ones for its other values; nothing for any other value."""
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []
