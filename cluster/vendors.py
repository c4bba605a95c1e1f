"""What scenarios of several vendors do on a stage: ask for one device of a driver, and look at what pods got."""

from __future__ import annotations

from typing import Any

from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.stage import Stage, results
from cluster.workload import container, devices, pod, request, template

DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")


def published(cluster: Cluster, agent: Agent) -> dict[str, list[str]]:
    """Return the names of the slices of each driver on the agent's node."""
    found: dict[str, list[str]] = {}
    for one in cluster.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={agent.node.name}"):
        found.setdefault(one["spec"]["driver"], []).append(one["metadata"]["name"])
    return found


def one_of(stage: Stage, driver: str, selector: str = "") -> str:
    """Create a template for one device of a driver, and return its name."""
    name = driver.split(".")[1] + (f"-{abs(hash(selector)):x}" if selector else "")
    stage.create(template(stage.namespace, name, devices(request("gpu", driver, selector))))
    return name


def start(stage: Stage, name: str, of: str) -> None:
    """Create a pod with a claim from a template."""
    stage.create(pod(stage.namespace, name, container("main", "gpu"), templates={"gpu": of}, grace=1))


def drivers_of(stage: Stage, found: Any) -> list[str]:
    """Return the drivers of all devices that a pod has."""
    return sorted(result["driver"] for claim in stage.claims(found).values() for result in results(claim))
