"""Random worlds for the allocator alone: slices, classes, devices in use, the claims of one pod, and feature gates.

In: a seed. Out: a world as the oracle and our allocator read it. Unlike those of `random_world.py`, which an API server
has to accept, these worlds also contain what only an older or a careless server would have accepted.
"""

from __future__ import annotations

from random import Random
from typing import Any

Wire = dict[str, Any]
DRIVER = "gpu.example.com"
NODES = ("node-1", "node-2")
SWITCHES = (
    "AdminAccess",
    "PrioritizedList",
    "ConsumableCapacity",
    "DeviceBindingAndStatus",
    "DeviceTaints",
    "PartitionableDevices",
    "FractionalCapacityRange",
    "ListTypeAttributes",
    "CompatibilityGroups",
)
_POLICIES: tuple[Wire, ...] = (
    {"default": "10Gi"},
    {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]},
    {"default": "5Gi", "validRange": {"min": "2Gi", "max": "20Gi", "step": "1Gi"}},
    {"default": "2Gi", "validRange": {"min": "2Gi"}},
)
_FRACTIONS: Wire = {"default": "200m", "validRange": {"min": "200m", "max": "3", "step": "100m"}}
_AMOUNTS = ("3Gi", "8Gi", "30Gi", "2500Mi", "4294967297", "16Gi")
_CORES = ("250m", "1", "300m", "2", "1333m", "200500u")


def random_world(seed: int) -> Wire:
    """Return the world of a seed."""
    return _Maker(Random(seed)).make()


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.features = {name: random.random() < 0.6 for name in SWITCHES}
        self.features["ListTypeAttributes"] = random.random() < 0.25
        self.features["CompatibilityGroups"] = random.random() < 0.3
        # Often everything is on at once; the defaults of a version, with nothing alpha, are common too.
        if random.random() < 0.3:
            self.features |= dict.fromkeys(SWITCHES[:6], True)
        # The allocator of 1.34 has two switches of its own, which later became one.
        self.features |= dict.fromkeys(("DeviceBinding", "DeviceStatus"), self.features["DeviceBindingAndStatus"])
        self.slices: list[Wire] = []
        self.devices: list[tuple[str, str, Wire]] = []

    def happens(self, share: float) -> bool:
        return self.random.random() < share

    def make(self) -> Wire:
        for node in NODES[: self.random.choice([1, 1, 2])]:
            self.pool(node, {"nodeName": node})
        if self.happens(0.25):
            self.pool("everywhere", {"allNodes": True})
        if self.happens(0.15):
            term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [self.random.choice("ab")]}]}
            self.pool("zone", {"nodeSelector": {"nodeSelectorTerms": [term]}})
        claims = [self.claim(f"claim-{number}") for number in range(self.random.choice([1, 1, 1, 2]))]
        return {
            "features": self.features,
            "nodes": [_node(name, zone) for name, zone in zip(NODES, "ab", strict=True)],
            "classes": [
                _class("any", f'device.driver == "{DRIVER}"'),
                _class("shared", f'device.driver == "{DRIVER}" && device.allowMultipleAllocations'),
                _class("large", f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'),
            ],
            "slices": self.slices,
            "allocated": self.held(),
            "claims": claims,
        }

    # Slices

    def pool(self, name: str, scope: Wire) -> None:
        if self.happens(0.3):
            sets, devices = self.partitions()
            parts: list[Wire] = [{"sharedCounters": sets}, {"devices": devices}]
            if self.happens(0.4):
                parts = [parts[0] | parts[1]]  # as before 1.35
        else:
            devices = [self.device(f"gpu-{index}") for index in range(self.random.randint(1, 5))]
            cut = self.random.randint(1, len(devices)) if self.happens(0.25) else len(devices)
            parts = [{"devices": part} for part in (devices[:cut], devices[cut:]) if part]
        count = len(parts) + (self.happens(0.06))
        generation = self.random.randint(1, 3)
        for index, part in enumerate(parts):
            spec = {"driver": DRIVER, "pool": {"name": name, "generation": generation, "resourceSliceCount": count}}
            meta = {"name": f"{name}-{index}"}
            self.slices.append({"metadata": meta, "spec": spec | scope | part})
        self.devices += [(name, device["name"], device) for device in devices]

    def device(self, name: str) -> Wire:
        attributes: Wire = {
            "model": {"string": self.random.choice(["small", "large"])},
            "index": {"int": self.random.randint(0, 2)},
        }
        lists = self.features["ListTypeAttributes"]
        if lists and self.happens(0.4):
            attributes["links"] = {"strings": self.random.sample(["a", "b", "c"], self.random.randint(0, 3))}
        elif self.happens(0.5):
            attributes["links"] = {"string": self.random.choice("abc")}
        if lists and self.happens(0.3):
            attributes["ports"] = {"ints": self.random.sample([1, 2, 3], self.random.randint(1, 2))}
        memory: Wire = {"value": f"{self.random.choice([20, 40, 80])}Gi"}
        made: Wire = {"name": name, "attributes": attributes, "capacity": {"memory": memory}}
        if self.happens(0.2):
            effect = self.random.choice(["NoSchedule", "NoExecute", "None"])
            made["taints"] = [{"key": "sick", "value": self.random.choice("xy"), "effect": effect}]
        if self.happens(0.3):
            made["allowMultipleAllocations"] = True
        if self.happens(0.4):
            memory["requestPolicy"] = self.random.choice(_POLICIES)
        if self.happens(0.2):
            cores: Wire = {"value": self.random.choice(["3", "3500m"])}
            made["capacity"]["cores"] = cores | ({"requestPolicy": _FRACTIONS} if self.happens(0.7) else {})
        if self.happens(0.1):
            made["bindingConditions"] = ["ready"]
            made["bindingFailureConditions"] = ["broken"]
            made["bindsToNode"] = self.happens(0.5)
        return made

    def partitions(self) -> tuple[list[Wire], list[Wire]]:
        sets, devices = [], []
        pieces = self.random.randint(2, 3)
        for gpu in range(self.random.randint(1, 2)):
            slots = {f"slot-{piece}": {"value": "1"} for piece in range(pieces)}
            total = {"memory": {"value": "80Gi"}}
            sets.append({"name": f"gpu-{gpu}", "counters": slots | total})
            whole = {"counterSet": f"gpu-{gpu}", "counters": slots | total}
            devices.append(self.device(f"gpu-{gpu}") | {"consumesCounters": [whole | self.groups(0.2)]})
            for piece in range(pieces):
                share = {f"slot-{piece}": {"value": "1"}, "memory": {"value": f"{self.random.choice([20, 40])}Gi"}}
                part: Wire = {"counterSet": f"gpu-{gpu}", "counters": share} | self.groups(0.7)
                devices.append(self.device(f"gpu-{gpu}-part-{piece}") | {"consumesCounters": [part]})
        return sets, devices

    def groups(self, share: float) -> Wire:
        """Return the compatibility groups that a partition may name.

        They are rare, because without the gate they hide the whole pool.
        """
        if not self.happens(share if self.features["CompatibilityGroups"] else 0.02):
            return {}
        return {"compatibilityGroups": self.random.sample(["a", "b", "c"], self.random.choice([1, 1, 2]))}

    def held(self) -> list[Wire]:
        results = []
        for pool, name, device in self.random.sample(self.devices, min(len(self.devices), self.random.randint(0, 2))):
            result: Wire = {"request": "r", "driver": DRIVER, "pool": pool, "device": name}
            if device.get("allowMultipleAllocations") and self.happens(0.8):
                result["shareID"] = f"held-{len(results)}"
                if self.happens(0.8):
                    result["consumedCapacity"] = {key: self.random.choice(["1Gi", "5Gi"]) for key in device["capacity"]}
            elif self.happens(0.1):
                result["adminAccess"] = True
            results.append(result)
        meta = {"name": "held", "namespace": "default"}
        return [{"metadata": meta, "spec": {}, "status": {"allocation": {"devices": {"results": results}}}}]

    # Claims

    def claim(self, name: str) -> Wire:
        requests = [self.request(f"r{index}") for index in range(self.random.choice([1, 1, 2, 2, 3]))]
        spec: Wire = {"requests": requests}
        if self.happens(0.4):
            kind = "distinctAttribute" if self.happens(0.3) else "matchAttribute"
            wanted = {kind: f"{DRIVER}/{self.random.choice(['index', 'model', 'links', 'links', 'ports'])}"}
            names = [self.random.choice(requests)["name"]]
            spec["constraints"] = [wanted | ({"requests": names} if self.happens(0.3) else {})]
        if self.happens(0.15):
            spec["config"] = [_config() | ({"requests": [requests[-1]["name"]]} if self.happens(0.5) else {})]
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": spec}}

    def request(self, name: str) -> Wire:
        if self.happens(0.2):
            choices = [{"name": f"choice-{index}", **self.wish()} for index in range(self.random.randint(2, 3))]
            return {"name": name, "firstAvailable": choices}
        wish = self.wish()
        if self.happens(0.08):
            wish["adminAccess"] = self.happens(0.8)
        return {"name": name, "exactly": wish}

    def wish(self) -> Wire:
        made: Wire = {"deviceClassName": self.random.choice(["any", "any", "any", "shared", "large"])}
        made["allocationMode"] = "All" if self.happens(0.15) else "ExactCount"
        if made["allocationMode"] == "ExactCount":
            made["count"] = self.random.choice([1, 1, 1, 2, 3])
        if self.happens(0.3):
            made["selectors"] = [{"cel": {"expression": self.selector()}}]
        if self.happens(0.3):
            tolerations: list[Wire] = [{"operator": "Exists"}, {"key": "sick", "operator": "Equal", "value": "x"}]
            made["tolerations"] = [self.random.choice(tolerations)]
        if self.features["ConsumableCapacity"] and self.happens(0.35):
            name, amounts = self.random.choice([("memory", _AMOUNTS), ("cores", _CORES)])
            made["capacity"] = {"requests": {name: self.random.choice(amounts)}}
        return made

    def selector(self) -> str:
        domain = f'device.attributes["{DRIVER}"]'
        texts = (
            f'{domain}.model == "{self.random.choice(["small", "large"])}"',
            f"{domain}.index < {self.random.randint(1, 2)}",
            "!device.allowMultipleAllocations",
            f'"links" in {domain}',
        )
        return self.random.choice(texts)


def _node(name: str, zone: str) -> Wire:
    return {"metadata": {"name": name, "labels": {"zone": zone, "kubernetes.io/hostname": name}}}


def _class(name: str, *expressions: str) -> Wire:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": one}} for one in expressions]}}


def _config() -> Wire:
    return {"opaque": {"driver": DRIVER, "parameters": {"kind": "It"}}}
