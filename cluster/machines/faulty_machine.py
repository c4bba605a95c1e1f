"""A machine whose GPUs can be made faulty, and what is reported to the pods that use them.

In: an agent on a simulated machine. Out: taints, writes, the status of pods, Events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import yaml

from cluster.agent import Agent
from cluster.machines.hardware import SIMULATED, machine
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import claim, container, devices, pod, request, template

KEY = "gpu.nvidia.com/needs-reset"
HEALTHY: dict[str, Any] = {"recoveryAction": 0}
FAULTY: dict[str, Any] = {"recoveryAction": 1}


class FaultyMachine:
    """An agent on a simulated machine whose GPUs can be made faulty."""

    def __init__(
        self,
        start_agent: Callable[..., Agent],
        folder: Path,
        *flags: str,
        partitioned: Collection[int] | None = None,
        **options: Any,
    ) -> None:
        chosen = machine(SIMULATED, folder, partitioned=partitioned)
        self._file = Path(chosen["hardware"].removeprefix("simulated:"))
        self.set_health(0, HEALTHY)
        self.agent = start_agent(**chosen, flags=flags, **options)
        self.agent.published()

    def set_health(self, place: int, health: dict[str, Any], **more: Any) -> None:
        """Set the health that a GPU reports from now on; `more` are other fields of the GPU in its profile."""
        content = yaml.safe_load(self._file.read_text())
        content["gpus"][place] |= {"health": health, **more}
        new = self._file.with_suffix(".new")
        new.write_text(yaml.safe_dump(content))
        new.replace(self._file)

    def name(self, place: int) -> str:
        """Return the published name of a GPU."""
        pci = yaml.safe_load(self._file.read_text())["gpus"][place]["pci"]
        return "gpu-" + pci.replace(":", "-").replace(".", "-")

    def claim_for(self, place: int) -> dict[str, Any]:
        """Return the spec of a claim for one particular GPU."""
        uuid = self.agent.devices()[self.name(place)]["attributes"]["uuid"]["string"]
        return devices(request("gpu", selector=f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'))

    def taints(self, place: int) -> list[dict[str, Any]]:
        """Return the taints of a GPU as the API server keeps them."""
        found: list[dict[str, Any]] = self.agent.devices()[self.name(place)].get("taints", [])
        return found

    def writes(self) -> int:
        """Return how many writes of this node's slices were stored so far."""
        return len(self.agent.writes())

    def generations(self) -> set[int]:
        """Return the generations of the published pool."""
        return {found["spec"]["pool"]["generation"] for found in self.agent.slices()}


def use(stage: Stage, name: str, spec: dict[str, Any]) -> str:
    """Run a pod with one device whose health its kubelet reports; return the device.

    A kubelet of 1.34 reports a claim only under the claim's own name, one of 1.35 only claims from templates.
    """
    if stage.cluster.version == "1.34":
        made, how = claim(stage.namespace, name, spec), {"claims": {name: name}}
    else:
        made, how = template(stage.namespace, name, spec), {"templates": {name: name}}
    stage.create(made, pod(stage.namespace, name, container("main", name), **how))
    (device,) = stage.devices(stage.check(name))
    return device


def health_of(stage: Stage, name: str) -> str:
    """Return what the pod's status reports about its only device."""
    status = stage.cluster.api.get("Pod", name, stage.namespace)["status"]
    found = [
        resource["health"]
        for one in status.get("containerStatuses", [])
        for entry in one.get("allocatedResourcesStatus", [])
        for resource in entry.get("resources", [])
    ]
    return found[0] if found else ""


def await_health(stage: Stage, name: str, health: str, seconds: float) -> None:
    until(f"the pod's device is {health}", lambda: health_of(stage, name) == health, seconds)


def events_of(stage: Stage, name: str) -> list[dict[str, Any]]:
    """Return the driver's Events about a pod."""
    path = f"/api/v1/namespaces/{stage.namespace}/events?fieldSelector=involvedObject.name%3D{name}"
    found: list[dict[str, Any]] = stage.cluster.api.call("GET", path)["items"]
    return [one for one in found if one["reason"] == "DeviceFault"]


def version(stage: Stage, name: str) -> str:
    """Return the pod's resource version, which changes with every write."""
    return str(stage.cluster.api.get("Pod", name, stage.namespace)["metadata"]["resourceVersion"])
