"""Random worlds in which the search is long: partitions that share counters, constraints, a second driver on the node.

In: a seed. Out: a world as the oracle and our allocator read it. Most of these worlds have no solution, and the
allocator finds that out only after it has tried a great deal.
"""

from __future__ import annotations

from random import Random
from typing import Any

from cluster.oracle.worlds import DRIVER, SWITCHES

Wire = dict[str, Any]
NODE = "node-1"
_NIC = "nic.example.com"
_ALPHA = ("ListTypeAttributes", "CompatibilityGroups")
_KINDS = ("small", "half", "whole")


def random_search(seed: int) -> Wire:
    """Return the world of a seed."""
    return _Maker(Random(seed)).make()


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.features = {name: name not in _ALPHA for name in SWITCHES}
        self.features["ConsumableCapacity"] = self.happens(0.4)
        self.features["DeviceBindingAndStatus"] = self.happens(0.4)
        self.features |= dict.fromkeys(("DeviceBinding", "DeviceStatus"), self.features["DeviceBindingAndStatus"])
        self.gpus = random.randint(2, 7)

    def happens(self, share: float) -> bool:
        return self.random.random() < share

    def make(self) -> Wire:
        slices = self.graphics() + (self.network() if self.happens(0.5) else [])
        count = self.random.choice([1, 1, 2])
        return {
            "features": self.features,
            "nodes": [{"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}}],
            "classes": [_class("gpu", DRIVER), _class("nic", _NIC), _class("any", "")],
            "slices": slices,
            "allocated": [],
            "claims": [self.claim(f"claim-{number}", nics=len(slices) > 2) for number in range(count)],
        }

    def graphics(self) -> list[Wire]:
        """Return GPUs that can be partitioned: some whole devices, halves and small parts, each with its placements."""
        sets, devices = [], []
        small = self.random.choice([2, 4, 7])
        for gpu in range(self.gpus):
            name = f"gpu-{gpu}"
            slots = {f"slot-{slot}": {"value": "1"} for slot in range(small)}
            sets.append({"name": name, "counters": slots | {"memory": {"value": "80Gi"}}})
            attributes = self.attributes(gpu)
            parts = [("whole", 0, small, 80), *(("small", slot, slot + 1, 80 // small) for slot in range(small))]
            if self.happens(0.5):
                parts += [("half", 0, small // 2, 40), ("half", small // 2, small, 40)]
            for kind, first, last, memory in self.random.sample(parts, len(parts)) if self.happens(0.3) else parts:
                taken = {f"slot-{slot}": {"value": "1"} for slot in range(first, last)}
                taken |= {"memory": {"value": f"{memory}Gi"}}
                device: Wire = {"name": f"{name}-{kind}-{first}"}
                device["attributes"] = attributes | {"kind": {"string": kind}, "first": {"int": first}}
                device["capacity"] = {"memory": {"value": f"{memory}Gi"}}
                device["consumesCounters"] = [{"counterSet": name, "counters": taken}]
                if self.happens(0.02):
                    device["taints"] = [{"key": "sick", "value": "x", "effect": "NoSchedule"}]
                devices.append(device)
        if self.happens(0.3):
            devices += [{"name": f"plain-{index}", "attributes": self.attributes(9)} for index in range(3)]
        return _pool("gpu", DRIVER, [{"sharedCounters": sets}, {"devices": devices}])

    def attributes(self, gpu: int) -> Wire:
        return {
            "parent": {"string": f"GPU-{gpu}"},
            "resource.kubernetes.io/numaNode": {"int": gpu % 2},
            "model": {"string": self.random.choice(["old", "new"])},
        }

    def network(self) -> list[Wire]:
        """Return the devices of another driver, whose pool has the same name."""
        shared = self.happens(0.3)
        devices = [
            {
                "name": f"nic-{index}",
                "attributes": {"resource.kubernetes.io/numaNode": {"int": index % 2}, "index": {"int": index}},
                **({"allowMultipleAllocations": True} if shared else {}),
            }
            for index in range(self.random.randint(1, 6))
        ]
        parts: list[Wire] = [{"devices": devices}]
        if self.happens(0.3):
            name = self.random.choice(["nic", "gpu-0"])
            parts.insert(0, {"sharedCounters": [{"name": name, "counters": {"memory": {"value": "80Gi"}}}]})
            for device in devices:
                taken = {"memory": {"value": f"{self.random.choice([20, 40])}Gi"}}
                device["consumesCounters"] = [{"counterSet": name, "counters": taken}]
        return _pool("nic", _NIC, parts)

    def claim(self, name: str, *, nics: bool) -> Wire:
        requests = [self.request(f"r{index}", nics=nics) for index in range(self.random.choice([1, 1, 2, 3, 4]))]
        spec: Wire = {"requests": requests}
        if self.happens(0.5):
            kind = "distinctAttribute" if self.happens(0.25) else "matchAttribute"
            numa = "resource.kubernetes.io/numaNode"
            attribute = self.random.choice([f"{DRIVER}/parent", f"{DRIVER}/model", f"{DRIVER}/first", numa, numa])
            names = [one["name"] for one in requests if self.happens(0.7)]
            spec["constraints"] = [{kind: attribute} | ({"requests": names} if names else {})]
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": spec}}

    def request(self, name: str, *, nics: bool) -> Wire:
        if self.happens(0.15):
            choices = [{"name": f"choice-{index}", **self.wish(nics=nics)} for index in range(2)]
            return {"name": name, "firstAvailable": choices}
        return {"name": name, "exactly": self.wish(nics=nics)}

    def wish(self, *, nics: bool) -> Wire:
        kind = "nic" if nics and self.happens(0.3) else "gpu"
        made: Wire = {"deviceClassName": kind, "allocationMode": "ExactCount"}
        most = {"nic": 3, "gpu": self.gpus + 2}[kind]
        made["count"] = self.random.randint(1, most)
        texts: list[str] = []
        domain = f'device.attributes["{DRIVER}"]'
        if kind == "gpu" and self.happens(0.8):
            texts.append(f'{domain}.?kind.orValue("") == "{self.random.choice(_KINDS)}"')
        if kind == "gpu" and self.happens(0.2):
            texts.append(f'{domain}.model == "{self.random.choice(["old", "new"])}"')
        if texts:
            made["selectors"] = [{"cel": {"expression": text}} for text in texts]
        return made


def _class(name: str, driver: str) -> Wire:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}] if driver else []
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


def _pool(name: str, driver: str, parts: list[Wire]) -> list[Wire]:
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(parts)}
    return [
        {"metadata": {"name": f"{name}-{index}"}, "spec": {"driver": driver, "nodeName": NODE, "pool": pool} | part}
        for index, part in enumerate(parts)
    ]
