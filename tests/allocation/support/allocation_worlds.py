"""Small worlds to allocate in: nodes with GPUs, whole or partitioned, as wire dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DRIVER = "gpu.example.com"
ALL_FEATURES = {"AdminAccess": True, "PrioritizedList": True, "DeviceTaints": True, "PartitionableDevices": True}
WITH_SHARES = {**ALL_FEATURES, "ConsumableCapacity": True}

Wire = dict[str, Any]


def node(name: str, **labels: str) -> Wire:
    return {"metadata": {"name": name, "labels": labels}}


def device_class(name: str = DRIVER, *selectors: str) -> Wire:
    guard = f'device.driver == "{DRIVER}"'
    return {"metadata": {"name": name}, "spec": {"selectors": [_cel(text) for text in (guard, *selectors)]}}


def gpu(name: str, *, memory: str = "80Gi", **attributes: str | int) -> Wire:
    kinds = {str: "string", int: "int"}
    return {
        "name": name,
        "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()},
        "capacity": {"memory": {"value": memory}},
    }


def pool(name: str, devices: Sequence[Wire], *, count: int = 1, generation: int = 1, **scope: Any) -> Wire:
    return {
        "metadata": {"name": f"{name}-devices"},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": count},
            **(scope or {"nodeName": name}),
            "devices": list(devices),
        },
    }


def counters(name: str, sets: Sequence[Wire], *, count: int = 2) -> Wire:
    return {
        "metadata": {"name": f"{name}-counters"},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": count},
            "nodeName": name,
            "sharedCounters": list(sets),
        },
    }


def partitioned(name: str, gpus: int, parts: int) -> list[Wire]:
    """Return the slices of a node whose GPUs are each either whole or in equal parts."""
    sets: list[Wire] = []
    devices: list[Wire] = []
    for index in range(gpus):
        slots = {f"slot-{k}": {"value": "1"} for k in range(parts)}
        sets.append({"name": f"gpu-{index}", "counters": slots})
        taken = [{"counterSet": f"gpu-{index}", "counters": slots}]
        devices.append({**gpu(f"gpu-{index}", kind="whole", index=index), "consumesCounters": taken})
        for k in range(parts):
            taken = [{"counterSet": f"gpu-{index}", "counters": {f"slot-{k}": {"value": "1"}}}]
            devices.append({**gpu(f"gpu-{index}-{k}", kind="part", index=index), "consumesCounters": taken})
    return [counters(name, sets), pool(name, devices, count=2)]


def request(name: str = "gpu", *, count: int | None = 1, selectors: Sequence[str] = (), **more: Any) -> Wire:
    mode: Wire = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    exactly = {"deviceClassName": DRIVER, **mode, "selectors": [_cel(text) for text in selectors], **more}
    return {"name": name, "exactly": exactly}


def claim(*requests: Wire, name: str = "claim", constraints: Sequence[Wire] = (), config: Sequence[Wire] = ()) -> Wire:
    devices = {"requests": list(requests), "constraints": list(constraints), "config": list(config)}
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"devices": devices}}


def allocated(*devices: tuple[str, str], name: str = "holder") -> Wire:
    """Return a claim that holds devices, named by (pool, device)."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": p, "device": d} for p, d in devices]
    return {**claim(name=name), "status": {"allocation": {"devices": {"results": results}}}}


def attribute(name: str) -> str:
    return f'device.attributes["{DRIVER}"].{name}'


def _cel(text: str) -> Wire:
    return {"cel": {"expression": text}}
