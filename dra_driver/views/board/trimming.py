"""Reduce objects to the fields that pages show.

In: objects as the API server sends them, whose fields may have any type. Out: the same objects with fewer fields.
Environment, commands, volumes and annotations are removed before an object is stored, so that the console never stores
a secret that a user wrote into a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.model.wire import Wire

_METADATA = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp", "ownerReferences")
_POD_SPEC = (
    "nodeName",
    "schedulerName",
    "resourceClaims",
    "schedulingGates",
    "nodeSelector",
    "affinity",
    "tolerations",
)
_POD_STATUS = ("phase", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus", "nominatedNodeName")
_NODE_SPEC = ("unschedulable", "taints")
_HEALTH = "allocatedResourcesStatus"


def trimmed(kind: str, given: Any) -> Wire:
    """Return an object of a kind with only the fields that are kept."""
    wire = _mapping(given)
    found = {name: value for name, value in wire.items() if name in {"apiVersion", "kind", "spec", "status"}}
    found["metadata"] = _some(_mapping(wire.get("metadata")), _METADATA)
    spec, status = _mapping(wire.get("spec")), _mapping(wire.get("status"))
    if kind == "Pod":
        found["spec"] = _some(spec, _POD_SPEC)
        for group in ("containers", "initContainers"):
            if group in spec:
                found["spec"][group] = [_some(one, ("name", "resources")) for one in _mappings(spec[group])]
        found["status"] = _some(status, _POD_STATUS) | _health(status)
    if kind == "Node":
        found["spec"] = _some(spec, _NODE_SPEC)
        found["status"] = _some(status, ("allocatable",))
        ready = [one for one in _mappings(status.get("conditions")) if one.get("type") == "Ready"]
        found["status"]["conditions"] = [_some(one, ("type", "status")) for one in ready]
    return found


def _health(status: Mapping[str, Any]) -> Wire:
    """Return the health that the kubelet reports for the devices of containers."""
    statuses = _mappings(status.get("containerStatuses"))
    found = [_some(one, ("name", _HEALTH)) for one in statuses if one.get(_HEALTH)]
    return {"containerStatuses": found} if found else {}


def _some(wire: Mapping[str, Any], names: Iterable[str]) -> Wire:
    return {name: wire[name] for name in names if name in wire}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
