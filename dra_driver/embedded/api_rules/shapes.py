"""Shapes: the fields of resource.k8s.io/v1 objects, as data for `shape.decode`.

Source: resource.k8s.io/v1 API reference, Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

from dra_driver.embedded.api_rules.shape import ANY, QUANTITY, TIME, Map, Shape

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
