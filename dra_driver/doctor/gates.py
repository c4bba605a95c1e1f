"""Feature gates, recognised by the fields that the API server keeps of an object that is never stored.

Pure. Each question is the dry run of a create whose object has one field behind a feature gate; the answer either has
the field or lacks it. A server that does not know a field drops it as well.
Source: Kubernetes API resource/v1, fields and their feature gates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.paths import CLASSES, SLICES
from dra_driver.model.kubernetes import (
    CONSUMABLE_CAPACITY,
    DEVICE_TAINTS,
    EXTENDED_RESOURCE,
    PARTITIONABLE_DEVICES,
    Since,
)
from dra_driver.model.wire import Wire


@dataclass(frozen=True, slots=True)
class GateProbe:
    """The question about one gate: how to make the object, where its field is, and what is missing without the gate."""

    make: Callable[[str, str, int], tuple[str, Wire]]
    field: tuple[str | int, ...]
    without: str

    def request(self, driver: str, node: str, minor: int) -> tuple[str, Wire]:
        """Return path and body of the dry run."""
        return self.make(driver, node, minor)


def has_field(probe: GateProbe, stored: Wire) -> bool:
    """Return whether the object in the server's answer has the field."""
    value: Any = stored
    for key in probe.field:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return value not in (None, False, [], {})


def _slice(driver: str, node: str, **spec: Any) -> tuple[str, Wire]:
    pool = {"name": f"{node}/doctor", "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "dra-driver-doctor-"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, **spec},
    }
    return SLICES, body


def _counters(driver: str, node: str, minor: int) -> tuple[str, Wire]:
    sets = [{"name": "gpu", "counters": {"memory": {"value": "1"}}}]
    if minor >= Since.COUNTERS_APART:
        return _slice(driver, node, sharedCounters=sets)
    takes = [{"counterSet": "gpu", "counters": {"memory": {"value": "1"}}}]
    return _slice(driver, node, sharedCounters=sets, devices=[{"name": "a", "consumesCounters": takes}])


def _taints(driver: str, node: str, _minor: int) -> tuple[str, Wire]:
    taint = {"key": "doctor.example.com/asked", "effect": "NoSchedule"}
    return _slice(driver, node, devices=[{"name": "a", "taints": [taint]}])


def _shared(driver: str, node: str, _minor: int) -> tuple[str, Wire]:
    return _slice(driver, node, devices=[{"name": "a", "allowMultipleAllocations": True}])


def _extended(_driver: str, _node: str, _minor: int) -> tuple[str, Wire]:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"generateName": "dra-driver-doctor-"},
        "spec": {"extendedResourceName": "doctor.example.com/asked"},
    }
    return CLASSES, body


PROBES: dict[str, GateProbe] = {
    PARTITIONABLE_DEVICES: GateProbe(
        _counters, ("spec", "sharedCounters"), "MIG partitions on demand: GPUs are offered as they are partitioned"
    ),
    CONSUMABLE_CAPACITY: GateProbe(
        _shared, ("spec", "devices", 0, "allowMultipleAllocations"), "shares by size; replicas still work"
    ),
    DEVICE_TAINTS: GateProbe(_taints, ("spec", "devices", 0, "taints"), "taints on unhealthy devices"),
    EXTENDED_RESOURCE: GateProbe(
        _extended, ("spec", "extendedResourceName"), "pods with limits nvidia.com/gpu served by classes"
    ),
}
