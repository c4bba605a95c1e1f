"""Objects that break one rule of the API each, and objects at the limits.

The verdicts of real servers of 1.35 and 1.36 on them are in tests/simulator/verdicts.json (see record_verdicts.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from tests.support.api.embedded_client import CLAIMS, SLICES, claim_wire, slice_wire

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def one(**device):
    return [{"name": "d", **device}]


TAINT = {"key": "example.com/sick", "effect": "NoSchedule"}
COUNTERS = {"memory": {"value": "8"}}
CONSUMES = [{"counterSet": "gpu", "counters": {"memory": {"value": "1"}}}]
SHARED = {"allowMultipleAllocations": True}


def shared(policy, value="10"):
    return one(**SHARED, capacity={"m": {"value": value, "requestPolicy": policy}})


BROKEN_SLICES = [
    {"driver": ""},
    {"driver": "a" * 64},
    {"driver": "under_score"},
    {"pool": {"name": "", "generation": 1, "resourceSliceCount": 1}},
    {"pool": {"name": "a//b", "generation": 1, "resourceSliceCount": 1}},
    {"pool": {"name": "a" * 254, "generation": 1, "resourceSliceCount": 1}},
    {"pool": {"name": "p", "generation": 1, "resourceSliceCount": 0}},
    {"pool": {"name": "p", "generation": -1, "resourceSliceCount": 1}},
    {"nodeName": None},
    {"allNodes": True},
    {"nodeName": ""},
    {"nodeName": None, "allNodes": False},
    {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": []}},
    {"devices": one() + one()},
    {"devices": [{"name": "a.b"}]},
    {"devices": [{"name": "a" * 64}]},
    {"devices": [{"name": f"d{i}"} for i in range(129)]},
    {"devices": [{"name": f"d{i}"} for i in range(64)] + one(taints=[TAINT])},
    {"devices": one(attributes={f"a{i}": {"int": 1} for i in range(33)})},
    {"devices": one(attributes={"a": {"int": 1}}, capacity={f"c{i}": {"value": "1"} for i in range(32)})},
    {"devices": one(attributes={"": {"int": 1}})},
    {"devices": one(attributes={"1a": {"int": 1}})},
    {"devices": one(attributes={"a-b": {"int": 1}})},
    {"devices": one(attributes={"a" * 33: {"int": 1}})},
    {"devices": one(attributes={"UP.com/a": {"int": 1}})},
    {"devices": one(attributes={"a": {}})},
    {"devices": one(attributes={"a": {"int": 1, "bool": True}})},
    {"devices": one(attributes={"a": {"string": "x" * 65}})},
    {"devices": one(attributes={"a": {"string": "é" * 33}})},
    {"devices": one(attributes={"a": {"version": "1.2"}})},
    {"devices": one(attributes={"a": {"version": "01.2.3"}})},
    {"devices": one(attributes={"a": {"version": "v1.2.3"}})},
    {"devices": one(capacity={"m": {}})},
    {"devices": one(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}})},
    {"devices": shared({"validRange": {"min": "1"}})},
    {"devices": shared({"default": "1", "validRange": {"min": "1"}, "validValues": ["1"]})},
    {"devices": shared({"default": "11"})},
    {"devices": shared({"default": "3", "validValues": ["1", "2"]})},
    {"devices": shared({"default": "1", "validValues": ["2", "1"]})},
    {"devices": shared({"default": "1", "validRange": {"max": "2"}})},
    {"devices": shared({"default": "2", "validRange": {"min": "1", "step": "2"}})},
    {"devices": shared({"default": "1", "validRange": {"min": "1", "step": "0"}})},
    {"devices": one(taints=[{"effect": "NoSchedule"}])},
    {"devices": one(taints=[{"key": "a b", "effect": "NoSchedule"}])},
    {"devices": one(taints=[{"key": "a"}])},
    {"devices": one(taints=[{"key": "a", "effect": "Often"}])},
    {"devices": one(taints=[{**TAINT, "value": "a b"}])},
    {"devices": one(taints=[{**TAINT, "timeAdded": "today"}])},
    {"devices": one(taints=[{**TAINT, "key": f"k{i}"} for i in range(17)])},
    {"devices": one(nodeName="n")},
    {"devices": one(bindingConditions=["a"])},
    {"devices": one(bindingConditions=list("abcde"), bindingFailureConditions=["x"])},
    {"devices": one(bindingConditions=["a"], bindingFailureConditions=["a"])},
    {"nodeName": None, "perDeviceNodeSelection": True, "devices": one()},
    {"sharedCounters": [{"name": "gpu", "counters": {}}]},
    {"sharedCounters": [{"name": "gpu", "counters": COUNTERS}] * 2},
    {"sharedCounters": [{"name": f"g{i}", "counters": COUNTERS} for i in range(9)]},
    {"sharedCounters": [{"name": "g", "counters": {f"c{i}": {"value": "1"} for i in range(33)}}]},
    {"sharedCounters": [{"name": "gpu", "counters": COUNTERS}], "devices": []},
    {"devices": one(consumesCounters=[{**CONSUMES[0], "counterSet": f"g{i}"} for i in range(3)])},
    {"devices": one(consumesCounters=CONSUMES * 2)},
    {"devices": one(consumesCounters=[{"counterSet": "g"}])},
]


VALID_SLICES = [
    {"devices": [{"name": f"d{i}"} for i in range(128)]},
    {"devices": [{"name": f"d{i}", "taints": [TAINT]} for i in range(64)]},
    {"devices": one(attributes={f"a{i}": {"int": 1} for i in range(32)})},
    {"devices": one(attributes={"other.example.com/name_1": {"string": "x" * 64}, "v": {"version": "1.2.3-a+b"}})},
    {"devices": one(attributes={"b": {"bool": False}, "z": {"int": 0}, "e": {"string": ""}})},
    {"nodeName": None, "allNodes": True},
    {"nodeName": None, "perDeviceNodeSelection": True, "devices": one(nodeName="n1")},
    {"sharedCounters": [{"name": f"g{i}", "counters": COUNTERS} for i in range(8)]},
    {"devices": one(consumesCounters=CONSUMES)},
    {"devices": shared({"default": "1", "validRange": {"min": "1", "step": "3", "max": "10"}})},
    {"devices": shared({"default": "2", "validValues": ["1", "2", "10"]})},
    {"devices": one(bindingConditions=["example.com/ready"], bindingFailureConditions=["example.com/failed"])},
    {"driver": "Upper.Example.Com", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}},
    {"pool": {"name": "n1/gpu.example.com", "generation": 0, "resourceSliceCount": 9}},
]


FULL = {
    "taints": [TAINT],
    "consumesCounters": CONSUMES,
    "allowMultipleAllocations": True,
    "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}},
    "bindsToNode": True,
}


def requests(**exactly):
    return {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", **exactly}}]}


def alternatives(*names):
    return {"requests": [{"name": "gpu", "firstAvailable": [{"name": n, "deviceClassName": "c"} for n in names]}]}


OPAQUE = {"driver": "gpu.example.com", "parameters": {"kind": "X"}}
COSTLY = "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, a < d))))"
LONG = {"a": "x" * 10241}

BROKEN_CLAIMS = [
    {"requests": [{"name": "gpu"}]},
    {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}, "firstAvailable": []}]},
    {"requests": [{"name": "g.u", "exactly": {"deviceClassName": "c"}}]},
    {"requests": [{"name": "g", "exactly": {"deviceClassName": "c"}}] * 2},
    {"requests": [{"name": f"g{i}", "exactly": {"deviceClassName": "c"}} for i in range(33)]},
    {"requests": [{"name": "g", "exactly": {}}]},
    requests(count=0),
    requests(count=-1),
    requests(allocationMode="All", count=2),
    requests(allocationMode="Some"),
    requests(selectors=[{}]),
    requests(selectors=[{"cel": {"expression": ""}}]),
    requests(selectors=[{"cel": {"expression": "true" + " " * 10240}}]),
    requests(selectors=[{"cel": {"expression": "true"}}] * 33),
    requests(selectors=[{"cel": {"expression": "1 +"}}]),
    requests(selectors=[{"cel": {"expression": "1"}}]),
    requests(selectors=[{"cel": {"expression": COSTLY}}]),
    requests(adminAccess=True),
    requests(tolerations=[{"operator": "Exists", "value": "x"}]),
    requests(tolerations=[{"value": "x"}]),
    requests(tolerations=[{"key": "a", "operator": "Like"}]),
    requests(tolerations=[{"key": "a", "effect": "Often"}]),
    requests(tolerations=[{"key": "a"}] * 17),
    requests(capacity={"requests": {"a-b": "1"}}),
    alternatives(*[f"a{i}" for i in range(9)]),
    alternatives("a", "a"),
    {"constraints": [{}]},
    {"constraints": [{"matchAttribute": "a.b/c", "distinctAttribute": "a.b/c"}]},
    {"constraints": [{"matchAttribute": "model"}]},
    {"constraints": [{"matchAttribute": "a.b/c", "requests": ["no"]}]},
    {"constraints": [{"matchAttribute": "a.b/c"}] * 33},
    {"config": [{}]},
    {"config": [{"opaque": {"driver": "d"}}]},
    {"config": [{"opaque": {**OPAQUE, "parameters": []}}]},
    {"config": [{"opaque": {**OPAQUE, "parameters": {}}}]},
    {"config": [{"opaque": {**OPAQUE, "parameters": {"a": "x" * 10241}}}]},
    {"config": [{"opaque": OPAQUE, "requests": ["no"]}]},
    {"config": [{"opaque": OPAQUE}] * 33},
]


RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "d"}
POD = {"resource": "pods", "name": "p", "uid": "u"}


def allocation(*results, **more):
    return {"devices": {"results": list(results or [RESULT]), **more}}


BROKEN_STATUSES = [
    {"allocation": allocation({**RESULT, "request": "no"})},
    {"allocation": allocation({**RESULT, "device": "A"})},
    {"allocation": allocation({**RESULT, "pool": "a//b"})},
    {"allocation": allocation({**RESULT, "driver": ""})},
    {"allocation": allocation({**RESULT, "shareID": "x"})},
    {"allocation": allocation(*[RESULT] * 33)},
    {"allocation": allocation(config=[{"opaque": OPAQUE}])},
    {"allocation": allocation(config=[{"source": "FromClass", "opaque": OPAQUE}] * 65)},
    {"allocation": {**allocation(), "nodeSelector": {"nodeSelectorTerms": [{}, {}]}}},
    {"reservedFor": [POD]},
    {"allocation": allocation(), "reservedFor": [POD, POD]},
    {"allocation": allocation(), "reservedFor": [{"name": "p"}]},
    {"allocation": allocation(), "reservedFor": [{**POD, "uid": f"u{i}"} for i in range(257)]},
    {"allocation": allocation(), "devices": [{**RESULT, "device": "other"}]},
    {"allocation": allocation(), "devices": [RESULT, RESULT]},
    {"allocation": allocation(), "devices": [{**RESULT, "data": "text"}]},
    {"allocation": allocation(), "devices": [{**RESULT, "conditions": [{}] * 9}]},
    {"allocation": allocation(), "devices": [{**RESULT, "networkData": {"ips": ["10.0.0.1"]}}]},
]


POLICIES = [
    {"default": "0", "validRange": {"min": "1"}},
    {"default": "5", "validRange": {"min": "1", "max": "4"}},
    {"default": "1", "validRange": {"min": "11"}},
    {"default": "1", "validRange": {"min": "1", "max": "11"}},
    {"default": "3", "validRange": {"min": "3", "max": "2"}},
    {"default": "1", "validRange": {"min": "1", "step": "11"}},
    {"default": "1", "validRange": {"min": "1", "step": "2", "max": "4"}},
    {"default": "1", "validValues": [str(i) for i in range(1, 12)]},
    {"default": "1", "validValues": ["1", "1"]},
    {"default": "11", "validValues": ["11"]},
    {"validValues": ["1"]},
    {"default": "1", "validValues": []},
]

DEVICES = [
    {"attributes": {"a": {"int": "1"}}},
    {"attributes": {"a": {"int": 1.5}}},
    {"attributes": {"a": {"int": True}}},
    {"attributes": {"a": {"int": 2**63}}},
    {"attributes": {"a": {"bool": 1}}},
    {"attributes": {"a": {"string": 1}}},
    {"attributes": []},
    {"attributes": {"v": {"version": ""}}},
    {"attributes": {"s": {"string": ""}}},
    {"attributes": {"a/b/c": {"int": 1}}},
    {"attributes": {"/x": {"int": 1}}},
    {"attributes": {"x.y/": {"int": 1}}},
    {"attributes": {"l": {"ints": [1]}}},
    {"capacity": {"m": {"value": "ten"}}},
    {"capacity": {"m": {"value": "1024Mi"}}},
    {"capacity": {"m": {"value": "0.1"}}},
    {"capacity": {"m": {"value": 1.5}}},
    {"capacity": {"a-b": {"value": "1"}}},
    {"bindingFailureConditions": ["a"]},
    {"bindingConditions": ["a b"], "bindingFailureConditions": ["b"]},
    {"bindsToNode": True},
    {"consumesCounters": []},
    {"consumesCounters": [{"counterSet": "A", "counters": {"B": {"value": "1"}}}]},
    {"consumesCounters": [{"counterSet": "a", "counters": {"b": {}}}]},
    {"taints": [{"key": "a", "effect": "NoSchedule", "timeAdded": "2020-01-01T01:00:00.5+01:00"}]},
    {"taints": {}},
    {"taints": []},
    {"taints": None},
    {"colour": "red"},
    {"allNodes": True},
    {"nodeSelector": {}},
    {"allowMultipleAllocations": False},
    FULL,
]

PER_DEVICE = {"nodeName": None, "perDeviceNodeSelection": True}
SPECS = [
    {**PER_DEVICE, "devices": one(allNodes=False)},
    {**PER_DEVICE, "devices": one(nodeName="")},
    {**PER_DEVICE, "devices": one(nodeName="a", allNodes=True)},
    {"sharedCounters": []},
    {"sharedCounters": [], "devices": []},
    {"sharedCounters": [{"name": "A", "counters": {"B": {"value": "1"}}}]},
    {"sharedCounters": [{"name": "a", "counters": {"b": {}}}]},
    {"devices": []},
    {"nodeName": "A_b"},
    {"pool": None},
    {"driver": None},
]

CLASS_SPECS = [
    {},
    {"selectors": [{"cel": {"expression": "true"}}] * 33},
    {"config": [{"opaque": OPAQUE}] * 33},
    {"config": [{"opaque": {"driver": "d"}}]},
    {"extendedResourceName": "gpu"},
    {"extendedResourceName": "a.kubernetes.io/gpu"},
    {"extendedResourceName": "example.com/gpu"},
]

_GATES = ("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceBindingConditions")
ALL_GATES = dict.fromkeys((*_GATES, "DRAExtendedResource"), True)


def creations() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield every object that is created: id, kind, collection, object."""
    specs = [*BROKEN_SLICES, *VALID_SLICES, *SPECS]
    specs += [{"devices": one(**device)} for device in DEVICES] + [{"devices": shared(policy)} for policy in POLICIES]
    for number, spec in enumerate(specs):
        yield f"slice-{number:03}", "ResourceSlice", SLICES, slice_wire(**spec)
    for number, devices in enumerate(BROKEN_CLAIMS):
        yield f"claim-{number:03}", "ResourceClaim", CLAIMS, claim_wire(**devices)
    for number, spec in enumerate(CLASS_SPECS):
        yield f"class-{number:03}", "DeviceClass", CLASSES, {"metadata": {"name": "c"}, "spec": spec}


def digest(value: Any) -> str:
    """Return a short name of any JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def verdict(status: int, answer: dict[str, Any]) -> list[Any]:
    """Return what is compared of an answer: status and faulty fields, or what was stored (a digest if it is long)."""
    if status >= 400:
        causes = (answer.get("details") or {}).get("causes") or []
        return [status, sorted({cause.get("field", "") for cause in causes})]
    stored = {"generation": answer["metadata"].get("generation"), "spec": answer["spec"]}
    for device in answer["spec"].get("devices") or [] if answer["kind"] == "ResourceSlice" else []:
        for taint in device.get("taints") or []:
            if not taint["timeAdded"].startswith("2020"):
                taint["timeAdded"] = "now"
    if "status" in answer:
        stored["status"] = answer["status"]
    return [status, stored if len(json.dumps(stored)) < 600 else digest(stored)]
