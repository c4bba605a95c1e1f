"""Devices, pools and a stand-in for the API server's slices without I/O, for tests of the controller."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

from dra_driver.base.wire import DeviceType
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.devices.describing import Device
from dra_driver.node.slices.layout import WritePlan

NODE, DRIVER = "node-1", "gpu.nvidia.com"
POOL = f"{NODE}/{DRIVER}"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": True}


def gpu(index: int, **attributes) -> Device:
    """Return a whole GPU as the inventory does."""
    facts = NvidiaGpu(uuid=f"GPU-{index}", pci_address=f"0000:{index:02x}:00.0", minor=index, memory_bytes=80 << 30)
    name = f"gpu-0000-{index:02x}-00-0"
    return Device(name, DeviceType.GPU, {"type": "gpu", **attributes}, {"memory": 80 << 30}, facts)


def device(name: str, **attributes) -> Device:
    """Return a whole GPU under a name."""
    return replace(gpu(0, **attributes), name=name)


def part(name: str, of: str = "gpu-0") -> Device:
    """Return a device that consumes from a counter set."""
    return replace(device(name), counter_set=of, counters={"memory": 1})


def device_wire(name: str, **fields) -> dict:
    """Return a device in wire form."""
    return {
        "name": name,
        "attributes": {"type": {"string": "gpu"}},
        "capacity": {"memory": {"value": "80Gi"}},
        **fields,
    }


def taint(key: str = "k", effect: str = "NoExecute", **fields) -> dict:
    """Return a taint in wire form."""
    return {"key": key, "effect": effect, **fields}


def counter_set(name: str, *counters: str) -> dict:
    """Return a counter set in wire form, each counter with 8."""
    return {"name": name, "counters": {counter: {"value": "8"} for counter in counters or ("memory",)}}


def consumes(name: str, *counters: str) -> list:
    """Return a device's consumption of one each."""
    return [{"counterSet": name, "counters": {counter: {"value": "1"} for counter in counters or ("memory",)}}]


class SliceStore:
    """Stored slices, changed only by plans: what the API server would hold afterwards."""

    def __init__(self) -> None:
        self.slices: dict[str, dict] = {}
        self._numbers = itertools.count(1)

    def all(self) -> list[dict]:
        return [copy.deepcopy(s) for s in self.slices.values()]

    def put(self, wire: dict, name: str = "") -> dict:
        number = next(self._numbers)
        stored = copy.deepcopy(wire)
        metadata = stored.setdefault("metadata", {})
        metadata["name"] = name or metadata.get("name") or f"{metadata.pop('generateName', 's-')}{number:05d}"
        metadata.setdefault("uid", f"uid-{number}")
        metadata["resourceVersion"] = str(number)
        for device in stored["spec"].get("devices", ()):
            for one in device.get("taints", ()):
                one.setdefault("timeAdded", f"2026-01-01T00:{number % 60:02d}:00Z")
        self.slices[metadata["name"]] = stored
        return stored

    def run(self, plan: WritePlan, *, maximum: int | None = None) -> None:
        """Carry out a plan, or the first writes of it, as a crash would leave it."""
        writes = [(self._delete, w) for w in plan.deletes] + [(self.put, w) for w in (*plan.updates, *plan.creates)]
        for act, wire in writes[:maximum]:
            act(wire)

    def _delete(self, wire: dict) -> None:
        del self.slices[wire["metadata"]["name"]]

    def pool(self, name: str = POOL) -> list[dict]:
        return [s["spec"] for s in self.slices.values() if s["spec"]["pool"]["name"] == name]

    def is_complete(self, name: str = POOL) -> bool:
        """Return whether the scheduler would use the pool, with nothing left over."""
        pools = [spec["pool"] for spec in self.pool(name)]
        return bool(pools) and all(
            p["generation"] == pools[0]["generation"] and p["resourceSliceCount"] == len(pools) for p in pools
        )

    def devices(self, name: str = POOL) -> dict[str, dict]:
        return {d["name"]: d for spec in self.pool(name) for d in spec.get("devices", ())}
