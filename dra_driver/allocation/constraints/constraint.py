"""What all constraints share: the requests that they cover, and the value of an attribute that they compare.

In: devices that are added one at a time and removed in reverse order. Out: whether a device may join. A constraint
remembers exactly what Kubernetes' constraint remembers, quirks included.

Source: Kubernetes structured allocator, matchAttribute and distinctAttribute.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from dra_driver.model.wire import Wire

ComparedValue = tuple[str, Any]  # kind, value
_KINDS = ("string", "int", "bool", "version")
_SET_KINDS = ("int", "bool", "string", "version")


def look_up(device: Wire, driver: str, name: str, *, lists: bool = False) -> ComparedValue | None:
    """Return the kind and value of the attribute with a fully qualified name, or ("?", None) if it can't be compared.

    With `lists` the value is the set of the attribute's values, whether it holds one value or many.

    Source: structured allocator, lookupAttribute: the exact key first, then the key without the driver's own domain.
    """
    attributes: Mapping[str, Wire] = device.get("attributes") or {}
    held = attributes.get(name)
    if held is None:
        domain, slash, short = name.partition("/")
        if not slash or domain != driver:
            return None
        held = attributes.get(short)
        if held is None:
            return None
    if lists:
        return _as_set(held)
    for kind in _KINDS:
        value = held.get(kind)
        if value is not None:
            return kind, value
    return "?", None


def _as_set(held: Wire) -> ComparedValue:
    for kind in _SET_KINDS:
        if held.get(f"{kind}s"):
            return kind, frozenset(held[f"{kind}s"])
    for kind in _SET_KINDS:
        if held.get(kind) is not None:
            return kind, frozenset([held[kind]])
    return "?", None


class Constraint:
    """What all constraints share: which requests they cover, and which attribute they compare."""

    __slots__ = ("attribute", "requests")

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        self.attribute = attribute
        self.requests = requests

    def covers(self, request: str, full_name: str) -> bool:
        """Return whether the constraint applies to devices of a request, or of one of its alternatives."""
        return not self.requests or request in self.requests or full_name in self.requests

    def add(self, request: str, value: ComparedValue | None) -> bool:
        """Let a device join if its value is acceptable; return whether it did."""
        raise NotImplementedError

    def remove(self, request: str) -> None:
        """Forget a device that joined."""
        raise NotImplementedError

    def state(self) -> Hashable:
        """Return everything that decides about further devices."""
        raise NotImplementedError
