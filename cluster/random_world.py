"""Random worlds for the scheduler to allocate in: slices of a made-up driver, its classes, pods with their claims.

In: a seed, the nodes, what the cluster's gates allow. Out: manifests that an API server accepts; equal seeds give equal
worlds. Each world has its own driver, pools and classes, complete pools and guarded selectors, so any number of them
can exist on one cluster without affecting each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from dra_driver.allocation.rules import Features

Wire = dict[str, Any]
API = "resource.k8s.io/v1"
MODELS = ("small", "large")
ZONE = "zone"


@dataclass(slots=True)
class World:
    """One world; its pods arrive one after the other."""

    name: str
    driver: str
    slices: list[Wire] = field(default_factory=list)
    classes: list[Wire] = field(default_factory=list)
    pods: list[list[Wire]] = field(default_factory=list)  # the claims of each pod

    @property
    def claims(self) -> list[str]:
        """Return the names of the claims of all pods."""
        return [one["metadata"]["name"] for claims in self.pods for one in claims]


def random_world(
    seed: int, nodes: list[str], zones: list[str], features: Features, namespace: str, *, has_counter_slices: bool
) -> World:
    """Return the world of a seed. Before Kubernetes 1.35 counters are in the slice of the devices that consume them."""
    return _Maker(seed, nodes, zones, features, namespace, has_counter_slices=has_counter_slices).make()


class _Maker:
    def __init__(
        self,
        seed: int,
        nodes: list[str],
        zones: list[str],
        features: Features,
        namespace: str,
        *,
        has_counter_slices: bool,
    ) -> None:
        self.random = Random(seed)
        self.world = World(f"world-{seed}", f"world-{seed}.example.com")
        self.nodes, self.zones = nodes, zones
        self.features = features
        self.namespace = namespace
        self.has_counter_slices = has_counter_slices

    def make(self) -> World:
        for node in self.random.sample(self.nodes, self.random.randint(1, 2)):
            self._pool(node, {"nodeName": node})
        if self._happens(0.3):
            self._pool("everywhere", {"allNodes": True})
        if self._happens(0.25):
            term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [self.random.choice(self.zones)]}]}
            self._pool("zone", {"nodeSelector": {"nodeSelectorTerms": [term]}})
        if self.features.partitionable and self._happens(0.2):
            self._pool("scattered", {"perDeviceNodeSelection": True})
        self._class("any")
        self._class("roomy", f'device.capacity["{self.world.driver}"].memory.compareTo(quantity("40Gi")) >= 0')
        for number in range(self.random.randint(1, 3)):
            self.world.pods.append([self._claim(f"{number}-{index}") for index in range(self.random.choice([1, 1, 2]))])
        return self.world

    def _happens(self, share: float) -> bool:
        return self.random.random() < share

    # Slices

    def _pool(self, name: str, scope: Wire) -> None:
        name = f"{self.world.name}-{name}"
        partitioned = self.features.partitionable and "perDeviceNodeSelection" not in scope and self._happens(0.4)
        if partitioned:
            sets, devices = self._partitions()
            parts: list[Wire] = [{"sharedCounters": sets}, {"devices": devices}]
            if not self.has_counter_slices:
                parts = [parts[0] | parts[1]]
        else:
            devices = [self._device(f"gpu-{index}") for index in range(self.random.randint(1, 5))]
            cut = self.random.randint(1, len(devices)) if self._happens(0.3) else len(devices)
            parts = [{"devices": part} for part in (devices[:cut], devices[cut:]) if part]
        if "perDeviceNodeSelection" in scope:
            for device in devices:
                device.update(self.random.choice([{"allNodes": True}, {"nodeName": self.random.choice(self.nodes)}]))
        generation = self.random.randint(2, 4)
        for index, part in enumerate(parts):
            self._slice(f"{name}-{index}", {"name": name, "generation": generation}, len(parts), scope, part)
        if "nodeName" in scope and self._happens(0.15):
            stale = {"devices": [self._device(f"old-{index}", plain=True) for index in range(3)]}
            self._slice(f"{name}-stale", {"name": name, "generation": 1}, 1, scope, stale)

    def _slice(self, name: str, pool: Wire, count: int, scope: Wire, part: Wire) -> None:
        spec = {"driver": self.world.driver, "pool": {**pool, "resourceSliceCount": count}, **scope, **part}
        self.world.slices.append({"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})

    def _device(self, name: str, *, plain: bool = False) -> Wire:
        attributes: Wire = {
            "model": {"string": self.random.choice(MODELS)},
            "index": {"int": self.random.randint(0, 2)},
            "release": {"version": f"{self.random.randint(1, 3)}.0.0"},
        }
        if self._happens(0.7):
            attributes["domain"] = {"string": self.random.choice("ab")}
        memory: Wire = {"value": f"{self.random.choice([20, 40, 80])}Gi"}
        made: Wire = {"name": name, "attributes": attributes, "capacity": {"memory": memory}}
        if plain:
            return made
        if self.features.taints and self._happens(0.2):
            effect = self.random.choice(["NoSchedule", "NoExecute"])
            made["taints"] = [{"key": "sick", "value": self.random.choice("xy"), "effect": effect}]
        if self.features.consumable_capacity and self._happens(0.3):
            made["allowMultipleAllocations"] = True
            if self._happens(0.7):
                memory["requestPolicy"] = self._policy()
        return made

    def _policy(self) -> Wire:
        policies: list[Wire] = [
            {"default": "10Gi"},
            {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]},
            {"default": "5Gi", "validRange": {"min": "2Gi", "max": "20Gi", "step": "1Gi"}},
        ]
        return self.random.choice(policies)

    def _partitions(self) -> tuple[list[Wire], list[Wire]]:
        """Divide one or two GPUs into two or three partitions each; each GPU is also offered whole."""
        sets, devices = [], []
        pieces = self.random.randint(2, 3)
        for gpu in range(self.random.randint(1, 2)):
            slots = {f"slot-{piece}": {"value": "1"} for piece in range(pieces)}
            total = {"memory": {"value": "80Gi"}}
            sets.append({"name": f"gpu-{gpu}", "counters": slots | total})
            whole = {"counterSet": f"gpu-{gpu}", "counters": slots | total}
            devices.append(self._device(f"gpu-{gpu}") | {"consumesCounters": [whole]})
            for piece in range(pieces):
                share = {f"slot-{piece}": {"value": "1"}, "memory": {"value": f"{self.random.choice([20, 40])}Gi"}}
                part = {"counterSet": f"gpu-{gpu}", "counters": share}
                devices.append(self._device(f"gpu-{gpu}-part-{piece}") | {"consumesCounters": [part]})
        return sets, devices

    # Classes and claims

    def _class(self, name: str, *selectors: str) -> None:
        texts = [f'device.driver == "{self.world.driver}"', *selectors]
        spec: Wire = {"selectors": [_cel(" && ".join(texts))]}
        if self._happens(0.3):
            spec["config"] = [self._config(name)]
        meta = {"name": f"{name}.{self.world.driver}"}
        self.world.classes.append({"apiVersion": API, "kind": "DeviceClass", "metadata": meta, "spec": spec})

    def _config(self, text: str) -> Wire:
        return {"opaque": {"driver": self.world.driver, "parameters": {"apiVersion": "v1", "kind": "It", "for": text}}}

    def _claim(self, number: str) -> Wire:
        requests = [self._request(f"r{index}") for index in range(self.random.choice([1, 1, 2, 3]))]
        spec: Wire = {"requests": requests}
        names = [request["name"] for request in requests]
        if self._happens(0.35):
            kind = "matchAttribute"
            if self.features.consumable_capacity and self._happens(0.3):
                kind = "distinctAttribute"
            domain = {kind: f"{self.world.driver}/{self.random.choice(['index', 'model', 'domain', 'release'])}"}
            spec["constraints"] = [domain | ({"requests": names[:1]} if self._happens(0.3) else {})]
        if self._happens(0.3):
            spec["config"] = [self._config("claim") | ({"requests": names[-1:]} if self._happens(0.5) else {})]
        meta = {"name": f"{self.world.name}-{number}", "namespace": self.namespace}
        return {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": spec}}

    def _request(self, name: str) -> Wire:
        if self._happens(0.25):
            choices = [{"name": f"choice-{index}", **self._wish()} for index in range(self.random.randint(2, 3))]
            return {"name": name, "firstAvailable": choices}
        wish = self._wish()
        if self._happens(0.1):
            wish["adminAccess"] = True
        return {"name": name, "exactly": wish}

    def _wish(self) -> Wire:
        made: Wire = {"deviceClassName": f"{self.random.choice(['any', 'any', 'roomy'])}.{self.world.driver}"}
        if self._happens(0.2):
            made["allocationMode"] = "All"
        else:
            made["count"] = self.random.choice([1, 1, 1, 2, 3])
        if self._happens(0.5):
            made["selectors"] = [_cel(self._selector())]
        if self.features.taints and self._happens(0.3):
            tolerations: list[Wire] = [{"operator": "Exists"}, {"key": "sick", "operator": "Equal", "value": "x"}]
            made["tolerations"] = [self.random.choice(tolerations)]
        if self.features.consumable_capacity and self._happens(0.3):
            made["capacity"] = {"requests": {"memory": f"{self.random.choice([3, 8, 30])}Gi"}}
        return made

    def _selector(self) -> str:
        domain = f'device.attributes["{self.world.driver}"]'
        texts = (
            f'{domain}.model == "{self.random.choice(MODELS)}"',
            f"{domain}.index < {self.random.randint(1, 2)}",
            f'"domain" in {domain} && {domain}.domain == "{self.random.choice("ab")}"',
            f'{domain}.release.isGreaterThan(semver("1.5.0"))',
            f'device.capacity["{self.world.driver}"].memory.isGreaterThan(quantity("30Gi"))',
        )
        return self.random.choice(texts)


def _cel(text: str) -> Wire:
    return {"cel": {"expression": text}}
