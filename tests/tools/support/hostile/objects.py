"""Valid objects of every kind that is read, a scenario and a line of a batch: what is spoiled in one place."""

from __future__ import annotations

from typing import Any

Wire = dict[str, Any]

DRIVER = "gpu.nvidia.com"
CLAIM_SPEC: Wire = {
    "devices": {
        "requests": [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": DRIVER,
                    "allocationMode": "ExactCount",
                    "count": 1,
                    "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].type == "gpu"'}}],
                    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
                    "capacity": {"requests": {"memory": "1Gi"}},
                },
            },
            {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": DRIVER, "allocationMode": "All"}]},
        ],
        "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/index"}],
        "config": [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}}],
    }
}
SLICE: Wire = {
    "kind": "ResourceSlice",
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {"name": "s"},
    "spec": {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "sharedCounters": [{"name": "set", "counters": {"memory": {"value": "80Gi"}}}],
        "perDeviceNodeSelection": False,
        "devices": [
            {
                "name": "d",
                "attributes": {"type": {"string": "gpu"}, "index": {"int": 1}, "v": {"version": "1.0.0"}},
                "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"validRange": {"min": "1Gi"}}}},
                "taints": [{"key": "a", "effect": "NoSchedule", "value": "b"}],
                "consumesCounters": [{"counterSet": "set", "counters": {"memory": {"value": "1Gi"}}}],
                "allowMultipleAllocations": True,
                "bindingConditions": ["a"],
            },
            {"name": "e", "attributes": {"type": {"string": "gpu"}}, "nodeSelector": {"nodeSelectorTerms": []}},
        ],
    },
}
TERM: Wire = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
OBJECTS: list[Wire] = [
    SLICE,
    {
        **SLICE,
        "metadata": {"name": "t"},
        "spec": {**SLICE["spec"], "nodeName": "", "nodeSelector": {"nodeSelectorTerms": [TERM]}},
    },
    {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default", "uid": "u"}, "spec": CLAIM_SPEC},
    {
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "default"},
        "spec": CLAIM_SPEC,
        "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "gpu",
                            "driver": DRIVER,
                            "pool": "n",
                            "device": "d",
                            "shareID": "x",
                            "consumedCapacity": {"memory": "1Gi"},
                        }
                    ]
                }
            },
        },
    },
    {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": CLAIM_SPEC}},
    {
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {
            "extendedResourceName": "nvidia.com/gpu",
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": {}}}],
        },
    },
    {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": False},
    },
    {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "resourceClaims": [
                {"name": "g", "resourceClaimName": "c"},
                {"name": "h", "resourceClaimTemplateName": "t"},
            ],
            "containers": [
                {"name": "x", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": "g"}]}}
            ],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "nodeSelector": {"a": "b"},
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
            },
        },
        "status": {"resourceClaimStatuses": [{"name": "h", "resourceClaimName": "c"}], "phase": "Pending"},
    },
]
SCENARIO: Wire = {
    "kubernetes": "1.36",
    "gates": {"DRAPartitionableDevices": True},
    "fleet": {"l40s": 1},
    "files": ["objects.yaml"],
    "timeline": [
        {"arrive": {"name": "a", "count": 2, "requests": CLAIM_SPEC["devices"]["requests"], "constraints": []}},
        {"arrive": {"file": "objects.yaml"}},
        {"leave": "a-1"},
        {"drain": "l40s-1"},
        {"undrain": "l40s-1"},
        {"lose": "l40s-1/gpu-0000-38-00-0"},
        {"restore": "l40s-1/gpu-0000-38-00-0"},
        {"replace": {"node": "l40s-1", "fleet": "t4"}},
    ],
}
BATCH: Wire = {
    "id": "a",
    "kubernetes": "1.35",
    "input": {
        "features": {"PartitionableDevices": True},
        "nodes": [OBJECTS[6]],
        "classes": [OBJECTS[5]],
        "slices": OBJECTS[:2],
        "allocated": [OBJECTS[3]],
        "claims": [OBJECTS[2]],
    },
}
