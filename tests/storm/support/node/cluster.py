"""The cluster's side of a storm: claims and pods that come and go through the API server, and a scheduler.

The scheduler takes what the slices offer, as the real one does. It is a bad one: mostly it looks whether another claim
has a device, but often not, and some of its claims tolerate every taint.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from dra_driver.simulator.store import CLAIMS, PODS, SLICES
from tests.storm.support.node.devices import (
    ADDRESSES,
    HOT,
    SHARED,
    Unit,
    address_of,
    gpu_name,
    partition_of,
    units_of,
)

NODE = "node-1"
NAMESPACES = ("team-a", "team-b", "team-c")
CONTENDED = 0.7  # the share of claims for the GPU that is contended, whoever has it
MPS = 0.4  # the share of claims for one whole GPU that ask for MPS
TOLERANT = 0.25  # of these, the share that tolerates every taint


@dataclass(eq=False)
class Pod:
    """A pod of a claim."""

    uid: str
    name: str


@dataclass(eq=False)
class Claim:
    """A claim and what the cluster knows of it."""

    uid: str
    name: str
    namespace: str
    devices: tuple[str, ...]
    is_shared: bool
    pods: list[Pod] = field(default_factory=list)
    is_prepared: bool = False
    asked_at: float = 0.0  # when the Prepare began that was answered first
    cdi_ids: tuple[str, ...] = ()
    is_mps: bool = False  # it asks for MPS on its GPU, which it has to itself

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name} (UID {self.uid}, devices {', '.join(self.devices)})"

    @property
    def units(self) -> set[Unit]:
        return units_of(self.devices)


@dataclass(frozen=True)
class Offered:
    """A device in a slice."""

    name: str
    is_tainted: bool
    is_shareable: bool


class Cluster:
    """The API server's objects. Any thread may call it."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        for namespace in NAMESPACES:
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self.drained: dict[str, float] = {}  # GPUs that are given to no claim until then, in monotonic time
        self.rushed: dict[str, float] = {}  # GPUs that most claims want until then, whatever their taints

    # -- what is offered

    def offered(self) -> tuple[Offered, ...]:
        """Return the devices in the newest generation of this node's pool."""
        specs = [one["spec"] for one in self._api.items(SLICES) if one["spec"]["driver"] == NVIDIA_DRIVER]
        newest = max((spec["pool"]["generation"] for spec in specs), default=0)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if not current or len(current) < current[0]["pool"]["resourceSliceCount"]:
            return ()
        return tuple(offered_in(current))

    def choose(self, chance: random.Random, taken: Callable[[], set[Unit]]) -> tuple[Offered, ...]:
        """Choose the devices of a claim; nothing if nothing is offered."""
        if rushed := [address for address, until in tuple(self.rushed.items()) if time.monotonic() < until]:
            return tuple(_one(chance, [one for one in self.offered() if address_of(one.name) in rushed]))
        is_contended = chance.random() < CONTENDED
        tolerates = is_contended and chance.random() < TOLERANT
        drained = {address for address, until in tuple(self.drained.items()) if time.monotonic() < until}
        offered = [one for one in self.offered() if tolerates or not one.is_tainted]
        offered = [one for one in offered if address_of(one.name) not in drained]
        if is_contended:
            return tuple(_one(chance, [one for one in offered if address_of(one.name) == HOT], most=1))
        if chance.random() < 0.85:
            held = taken()
            offered = [one for one in offered if one.is_shareable or not units_of([one.name]) & held]
        address = chance.choice(ADDRESSES)
        chosen = list(_one(chance, [one for one in offered if address_of(one.name) == address]))
        if chosen and chance.random() < 0.15:
            chosen += _one(chance, [one for one in offered if address_of(one.name) not in (address, SHARED)])
        return tuple(chosen)

    def drain(self, address: str, seconds: float) -> None:
        """Keep a GPU from new claims for a while."""
        self.drained[address] = time.monotonic() + seconds

    def rush(self, address: str, seconds: float) -> None:
        """Make every new claim want a GPU for a while, because it is about to be changed."""
        self.rushed[address] = time.monotonic() + seconds

    # -- claims and pods

    def claim(self, chance: random.Random, devices: tuple[Offered, ...]) -> Claim:
        """Create a claim that has these devices, with one pod."""
        name, namespace = f"c-{chance.getrandbits(60):x}", chance.choice(NAMESPACES)
        exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
        requests = [{"name": f"r{index}", "exactly": exactly} for index in range(len(devices))]
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        made = self._api.create({**body, "spec": {"devices": {"requests": requests}}})
        results = [_result(index, device) for index, device in enumerate(devices)]
        is_shared, names = any(device.is_shareable for device in devices), tuple(one.name for one in devices)
        is_whole = len(names) == 1 and names[0] == gpu_name(address_of(names[0])) and not is_shared
        is_mps = is_whole and chance.random() < MPS
        claim = Claim(made["metadata"]["uid"], name, namespace, names, is_shared, is_mps=is_mps)
        config = {"config": [_MPS_CONFIG]} if is_mps else {}
        self._set_status(claim, {"allocation": {"devices": {"results": results, **config}}})
        self.join(claim)
        return claim

    def join(self, claim: Claim) -> Pod:
        """Create a pod that uses a claim, for which the claim is then reserved."""
        metadata = {"name": f"pod-{uuid.uuid4()}", "namespace": claim.namespace}
        spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "x"}]}
        made = self._api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pod = Pod(made["metadata"]["uid"], made["metadata"]["name"])
        claim.pods.append(pod)
        self._reserve(claim)
        return pod

    def leave(self, claim: Claim, pod: Pod) -> None:
        """Delete a pod, with grace or by force: in the API it is gone, and its claim no longer reserved for it."""
        claim.pods.remove(pod)
        _quietly(lambda: self._api.delete(PODS, pod.name, claim.namespace))
        self._reserve(claim)

    def delete(self, claim: Claim) -> None:
        """Delete a claim."""
        _quietly(lambda: self._api.delete(CLAIMS, claim.name, claim.namespace))

    def is_allocated(self, claim: Claim) -> bool:
        """Return whether the claim exists and is allocated."""
        try:
            wire = self._api.get(CLAIMS, claim.name, claim.namespace)
        except ApiRefusal:
            return False
        return bool((wire.get("status") or {}).get("allocation"))

    def _reserve(self, claim: Claim) -> None:
        consumers = [{"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in claim.pods]
        _quietly(lambda: self._set_status(claim, {"reservedFor": consumers}))

    def _set_status(self, claim: Claim, part: dict[str, Any]) -> None:
        """Change a part of a claim's status, again if somebody else changed it meanwhile."""
        path = CLAIMS.path(claim.namespace, claim.name)
        while True:
            wire = self._api.request("GET", path)
            wire["status"] = {**(wire.get("status") or {}), **part}
            try:
                self._api.request("PUT", f"{path}/status", body=wire)
            except ApiRefusal as refusal:
                if refusal.status != 409:
                    raise
            else:
                return


_MPS_CONFIG = {
    "source": "FromClaim",
    "requests": ["r0"],
    "opaque": {
        "driver": NVIDIA_DRIVER,
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
        },
    },
}


def offered_in(specs: list[dict[str, Any]]) -> Iterator[Offered]:
    """Yield the devices of slices. A device is tainted if no pod without a toleration may have it."""
    for spec in specs:
        for device in spec.get("devices") or ():
            name = device["name"]
            if not address_of(name) or ("-mig-" in name and partition_of(name) is None):
                continue
            effects = {taint["effect"] for taint in device.get("taints") or ()}
            is_tainted = bool(effects & {"NoSchedule", "NoExecute"})
            yield Offered(name, is_tainted, bool(device.get("allowMultipleAllocations")))


def _one(chance: random.Random, offered: list[Offered], most: int = 99) -> list[Offered]:
    """Choose one device: the whole GPU as likely as one of its (first `most`) parts, or as one for virtual machines."""
    kinds: dict[str, list[Offered]] = {}
    for one in offered:
        kind = "part" if "-mig-" in one.name else "passed" if one.name.endswith("-vfio") else "whole"
        kinds.setdefault(kind, []).append(one)
    if not kinds:
        return []
    return [chance.choice(sorted(kinds[chance.choice(sorted(kinds))], key=lambda one: one.name)[:most])]


def _result(index: int, device: Offered) -> dict[str, Any]:
    shared = {"shareID": str(uuid.uuid4()), "consumedCapacity": {"shares": "1"}} if device.is_shareable else {}
    return {
        "request": f"r{index}",
        "driver": NVIDIA_DRIVER,
        "pool": f"{NODE}/{NVIDIA_DRIVER}",
        "device": device.name,
        **shared,
    }


def _quietly(request: Callable[[], object]) -> None:
    """Make a request about an object that may be gone."""
    try:
        request()
    except ApiRefusal as refusal:
        if refusal.status != 404:
            raise
