"""Reach: which nodes can use the devices of a slice, or one device."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.allocation.pools.devices import SliceRecord
from dra_driver.allocation.pools.node_selector import matches_selector
from dra_driver.model.wire import Wire


def reaches_device(scope: Wire, node: Wire) -> bool:
    """Return whether the nodeName, allNodes or nodeSelector of a slice or device lets it reach a node.

    Raises:
        AllocatorError: The node selector can't be parsed.
    """
    name = scope.get("nodeName")
    if name:
        return bool((node.get("metadata") or {}).get("name") == name)
    if scope.get("allNodes"):
        return True
    selector = scope.get("nodeSelector")
    return selector is not None and matches_selector(selector, node)


def reaches(record: SliceRecord, node: Wire) -> bool:
    """Return whether a slice, or any of its devices, is for a node. Raises: AllocatorError."""
    spec = record.spec
    if spec.get("allNodes") or spec.get("nodeSelector") is not None:
        return reaches_device(spec, node)
    return record.is_per_device and any(reaches_device(wire, node) for wire in record.wires)


def label_key(spec: Wire) -> tuple[str, Sequence[str]] | None:
    """Return (label, values) that a node must have for the slice's selector to match; the label "" means its name."""
    if spec.get("allNodes") or spec.get("nodeSelector") is None:
        return None
    terms = spec["nodeSelector"].get("nodeSelectorTerms") or []
    if len(terms) != 1:
        return None
    for requirement in terms[0].get("matchFields") or []:
        if requirement.get("operator") == "In" and requirement.get("key") == "metadata.name":
            return ("", requirement["values"]) if len(requirement.get("values") or ()) == 1 else None
    for requirement in terms[0].get("matchExpressions") or []:
        if requirement.get("operator") == "In" and requirement.get("values"):
            return requirement["key"], requirement["values"]
    return None
