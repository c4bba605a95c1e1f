"""Odd objects: those that no API server has, made from good ones by putting a wrong value into each field in turn.

In: a good object of each kind, with every field that a page reads. Out: objects with one odd value each: of another
type, null, missing, empty, huge, or a text that is no name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

DRIVER, POOL, GPU = "gpu.nvidia.com", "n1/gpu.nvidia.com", "gpu-0000-65-00-0"
MISSING = object()
ODD: tuple[Any, ...] = (
    MISSING, None, True, False, 0, -1, 10**40, 1e308, "", "x", "\ud800\x00\u202e", "9" * 5_000, "1e999999999",
    [], {}, [None], [[]], [{}], ["x"], [7], {"x": None}, {"x": []}, {"x": {}}, {"x": "y"}, {"name": 7}, {"": 0},
    {"name": ["x"]}, [{"name": {}}],
)  # fmt: skip

_META = {
    "uid": "uid-1",
    "resourceVersion": "7",
    "labels": {"team": "a"},
    "annotations": {"a": "b"},
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-02T00:00:00Z",
    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}],
}
_SELECTOR = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
_EXACT = {
    "deviceClassName": "any",
    "count": 1,
    "allocationMode": "ExactCount",
    "adminAccess": False,
    "selectors": [_SELECTOR],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule", "value": "v", "tolerationSeconds": 9}],
    "capacity": {"requests": {"memory": "1Gi"}},
}
_OPAQUE = {"driver": DRIVER, "parameters": {"apiVersion": "config/v1", "kind": "GpuConfig"}}
_DEVICES = {
    "requests": [{"name": "gpu", "exactly": _EXACT}, {"name": "some", "firstAvailable": [{"name": "one", **_EXACT}]}],
    "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/model", "distinctAttribute": f"{DRIVER}/x"}],
    "config": [{"requests": ["gpu"], "opaque": _OPAQUE}],
}
_CONDITION = {"type": "Healthy", "status": "False", "reason": "Bad", "message": "bad", "lastTransitionTime": "t"}
_RESULT = {
    "request": "gpu",
    "driver": DRIVER,
    "pool": POOL,
    "device": GPU,
    "adminAccess": False,
    "shareID": "11111111-1111-1111-1111-111111111111",
    "consumedCapacity": {"memory": "1Gi"},
    "tolerations": _EXACT["tolerations"],
    "bindingConditions": ["a"],
    "bindingFailureConditions": ["b"],
}
_TERMS = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
_CLAIM = {
    "spec": {"devices": _DEVICES},
    "status": {
        "allocation": {
            "allocationTimestamp": "2026-01-01T00:00:00Z",
            "devices": {"results": [_RESULT], "config": [{"source": "FromClaim", "requests": [], "opaque": _OPAQUE}]},
            "nodeSelector": _TERMS,
        },
        "devices": [
            {**{name: _RESULT[name] for name in ("driver", "pool", "device", "shareID")},
             "conditions": [_CONDITION], "data": {"uuid": "GPU-1"},
             "networkData": {"interfaceName": "a", "ips": ["b"], "hardwareAddress": "c"}},
        ],
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u", "apiGroup": ""}],
    },
}  # fmt: skip
_TAINT = {"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
_COUNTERS = {"counters": {"memory-slice-0": {"value": "1"}}}
_DEVICE = {
    "attributes": {"productName": {"string": "H100"}, "type": {"string": "gpu"}, "numaNode": {"int": 1},
                   "driverVersion": {"version": "1.2.3"}, "ecc": {"bool": True}},
    "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi"],
                            "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"}}}},
    "taints": [_TAINT],
    "nodeName": "n1",
    "nodeSelector": _TERMS,
    "allNodes": False,
    "allowMultipleAllocations": True,
    "bindsToNode": True,
    "bindingConditions": ["a"],
    "bindingFailureConditions": ["b"],
}  # fmt: skip
_PART = {
    "name": f"{GPU}-mig-1g10gb-19-0",
    "attributes": {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}},
    "capacity": {"memorySlice0": {"value": "1"}},
    "consumesCounters": [{"counterSet": f"{GPU}-counters", **_COUNTERS}],
}
_CONTAINER = {
    "name": "main",
    "image": "x",
    "env": [{"name": "A", "value": "secret"}],
    "resources": {"claims": [{"name": "gpu", "request": "gpu"}], "limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
}
_HEALTH = {"name": "claim:gpu", "resources": [{"resourceID": "x", "health": "Healthy"}]}
GOOD: dict[str, dict[str, Any]] = {
    "Node": {
        "metadata": {"name": "n1", **_META},
        "spec": {"unschedulable": False, "taints": [{"key": "k", "effect": "NoSchedule", "value": "v"}]},
        "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    },
    "ResourceSlice": {
        "metadata": {"name": "slice-1", **_META},
        "spec": {
            "driver": DRIVER,
            "nodeName": "n1",
            "allNodes": False,
            "perDeviceNodeSelection": False,
            "nodeSelector": _TERMS,
            "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": GPU, **_DEVICE}, _PART],
            "sharedCounters": [{"name": f"{GPU}-counters", **_COUNTERS}],
        },
    },
    "DeviceClass": {
        "metadata": {"name": "any", **_META},
        "spec": {"selectors": [_SELECTOR], "config": [{"opaque": _OPAQUE}], "extendedResourceName": "example.com/gpu"},
    },
    "ResourceClaim": {"metadata": {"name": "held", "namespace": "team-a", **_META}, **_CLAIM},
    "ResourceClaimTemplate": {
        "metadata": {"name": "made", "namespace": "team-a", **_META},
        "spec": {"metadata": {"labels": {"a": "b"}}, "spec": _CLAIM["spec"]},
    },
    "Pod": {
        "metadata": {"name": "p", "namespace": "team-a", **_META},
        "spec": {
            "nodeName": "",
            "schedulerName": "default-scheduler",
            "containers": [_CONTAINER],
            "initContainers": [{**_CONTAINER, "name": "first"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "held"},
                               {"name": "new", "resourceClaimTemplateName": "made"}],
            "schedulingGates": [{"name": "gate"}],
            "nodeSelector": {"a": "b"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _TERMS}},
            "tolerations": [{"key": "k", "operator": "Exists", "value": "v", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}],
            "containerStatuses": [{"name": "main", "allocatedResourcesStatus": [_HEALTH]}],
            "resourceClaimStatuses": [{"name": "new", "resourceClaimName": "made-1"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": [
                {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "r"}]},
            "nominatedNodeName": "n1",
        },
    },
}  # fmt: skip


def good(kind: str) -> dict[str, Any]:
    """Return a good object of a kind."""
    return copy.deepcopy(GOOD[kind])


def odd_objects(kind: str) -> Iterator[tuple[str, Any]]:
    """Yield each odd object of a kind, with what is odd about it."""
    for path in _paths(GOOD[kind]):
        for value in ODD:
            found = good(kind)
            inner = found
            for part in path[:-1]:
                inner = inner[part]
            if value is MISSING:
                del inner[path[-1]]
            else:
                inner[path[-1]] = copy.deepcopy(value)
            shown = "missing" if value is MISSING else repr(value)[:40]
            yield f"{kind}.{'.'.join(map(str, path))}: {shown}", found
    for value in ODD[1:]:
        yield f"{kind}: {value!r:.40}", value


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if here:
        yield here
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        yield from _paths(inner, (*here, name))
