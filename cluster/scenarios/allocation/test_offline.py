"""What `simulate` says of manifests without a cluster is what the real scheduler does with them.

The shapes are those with which users of such a driver begin: a GPU for each pod, one that containers or pods share,
partitions of one GPU, selectors, a configuration, more devices than there are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.api import Object
from cluster.sandbox import NotInTime, until
from cluster.stage import Stage
from cluster.workload import claim, container, devices, pod, request, template

DOMAIN = "gpu.nvidia.com"
GPU = devices(request("gpu"))
SIBLINGS = [{"matchAttribute": f"{DOMAIN}/parentUUID"}]
HOPPER = f'device.attributes["{DOMAIN}"].architecture == "Hopper" && device.attributes["{DOMAIN}"].type == "gpu"'
DREAM = f'device.attributes["{DOMAIN}"].?brand.orValue("") == "Dream"'
SLICES = {"kind": "GpuConfig", "apiVersion": "resource.nvidia.com/v1beta1", "sharing": {"strategy": "TimeSlicing"}}
CONFIG = [{"requests": ["gpu"], "opaque": {"driver": DOMAIN, "parameters": SLICES}}]

PARTS = devices(
    *(
        request(name, "mig.nvidia.com", f"device.attributes['{DOMAIN}'].profile == '{profile}'")
        for name, profile in (("first", "1g.10gb"), ("second", "1g.10gb"), ("third", "1g.10gb"))
    ),
    constraints=[{"requests": [], "matchAttribute": f"{DOMAIN}/parentUUID"}],
)
BY_INDEX = f"""device.attributes['{DOMAIN}'].productName.lowerAscii().matches('^.*h100.*$') &&
(device.attributes['{DOMAIN}'].index == 0 || device.attributes['{DOMAIN}'].index == 2)"""
TURNS = {"timeSlicingConfig": {"interval": "Long"}}
TWO_WAYS = devices(
    request("turns"),
    request("beside"),
    config=[
        {"requests": ["turns"], "opaque": {"driver": DOMAIN, "parameters": {**SLICES, "sharing": {
            "strategy": "TimeSlicing", **TURNS}}}},
        {"requests": ["beside"], "opaque": {"driver": DOMAIN, "parameters": {**SLICES, "sharing": {
            "strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}}}},
    ],
)  # fmt: skip


def replicas(ns: str, name: str, count: int, one: dict[str, Any]) -> dict[str, Any]:
    """Return a Deployment of pods like one."""
    labels = {"app": name}
    inner = {"metadata": {"labels": labels}, "spec": one["spec"] | {"restartPolicy": "Always"}}
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": inner}
    meta = {"name": name, "namespace": ns}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def older(ns: str, name: str, count: int) -> dict[str, Any]:
    """Return a template as v1beta1 has it."""
    asked = [{"name": "gpu", "deviceClassName": DOMAIN, "count": count}]
    made = template(ns, name, {"devices": {"requests": asked}})
    return made | {"apiVersion": "resource.k8s.io/v1beta1"}


def extended(ns: str) -> dict[str, Any]:
    """Return a pod that asks for an extended resource."""
    main = container("main") | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return pod(ns, "p", main)


Shape = Callable[[str], Sequence[Any]]
SHAPES: dict[str, Shape] = {
    "a GPU for each pod": lambda ns: [
        template(ns, "one", GPU),
        *(pod(ns, f"p{n}", container("main", "gpu"), templates={"gpu": "one"}) for n in (1, 2)),
    ],
    "two containers on one GPU": lambda ns: [
        template(ns, "one", GPU),
        pod(ns, "p", container("a", "gpu"), container("b", "gpu"), templates={"gpu": "one"}),
    ],
    "two pods on one GPU": lambda ns: [
        claim(ns, "shared", GPU),
        *(pod(ns, f"p{n}", container("main", "gpu"), claims={"gpu": "shared"}) for n in (1, 2)),
    ],
    "partitions of one GPU": lambda ns: [
        template(ns, "parts", devices(request("mig", "mig.nvidia.com", count=2), constraints=SIBLINGS)),
        pod(ns, "p", container("main", "mig"), templates={"mig": "parts"}),
    ],
    "a GPU by its architecture": lambda ns: [
        template(ns, "hopper", devices(request("gpu", selector=HOPPER))),
        pod(ns, "p", container("main", "gpu"), templates={"gpu": "hopper"}),
    ],
    "a GPU with a configuration": lambda ns: [
        template(ns, "sliced", devices(request("gpu"), config=CONFIG)),
        pod(ns, "p", container("main", "gpu"), templates={"gpu": "sliced"}),
    ],
    "a GPU that nobody has": lambda ns: [
        template(ns, "dream", devices(request("gpu", selector=DREAM))),
        pod(ns, "p", container("main", "gpu"), templates={"gpu": "dream"}),
    ],
    "more than a node has": lambda ns: [
        template(ns, "much", devices(request("gpu", count=20))),
        pod(ns, "p", container("main", "gpu"), templates={"gpu": "much"}),
    ],
    "two claims of one template in a pod, in v1beta1": lambda ns: [
        older(ns, "one", 1),
        pod(ns, "p", container("a", "x"), container("b", "y"), templates={"x": "one", "y": "one"}),
    ],
    "two GPUs in one claim, in v1beta1": lambda ns: [
        older(ns, "two", 2),
        pod(ns, "p", container("main", "gpus"), templates={"gpus": "two"}),
    ],
    "four replicas with three partitions of one GPU each": lambda ns: [
        template(ns, "parts", PARTS),
        replicas(ns, "d", 4, pod(ns, "p", *(container(n, ("mig", n)) for n in ("first", "second", "third")),
                                 templates={"mig": "parts"})),
    ],
    "two GPUs shared in two ways": lambda ns: [
        template(ns, "ways", TWO_WAYS),
        pod(ns, "p", container("a", ("gpus", "turns")), container("b", ("gpus", "turns")),
            container("c", ("gpus", "beside")), container("d", ("gpus", "beside")), templates={"gpus": "ways"}),
    ],
    "replicas with a selector by an attribute that nobody has": lambda ns: [
        template(ns, "index", devices(request("gpu", selector=BY_INDEX))),
        replicas(ns, "d", 2, pod(ns, "p", container("main", "gpu"), templates={"gpu": "index"})),
    ],
    "replicas that share a claim of a class that is missing": lambda ns: [
        claim(ns, "channel", devices(request("channel", "imex.nvidia.com"))),
        template(ns, "one", GPU),
        replicas(ns, "d", 2, pod(ns, "p", container("main", "gpu", "channel"), templates={"gpu": "one"},
                                 claims={"channel": "channel"})),
    ],
    "a GPU of a class that is missing": lambda ns: [
        template(ns, "vfio", devices(request("gpu", "vfio.gpu.nvidia.com"))),
        pod(ns, "p", container("main", "gpu"), templates={"gpu": "vfio"}),
    ],
    "a template that is missing": lambda ns: [pod(ns, "p", container("main", "gpu"), templates={"gpu": "nope"})],
    "an extended resource that no class serves": lambda ns: [extended(ns)],
}  # fmt: skip


def offline(stage: Stage, objects: Sequence[Any], folder: Path) -> list[str]:
    """Return the number of devices of each pod by `simulate`, or that it waits."""
    api = stage.cluster.api
    versions = {"Node": "v1", "ResourceSlice": "resource.k8s.io/v1", "DeviceClass": "resource.k8s.io/v1"}
    known = [{"apiVersion": of, "kind": kind, **one} for kind, of in versions.items() for one in api.list(kind)]
    file = folder / "world.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [*known, *objects]}))
    argv = [sys.executable, "-m", "dra_driver", "simulate", "-f", str(file), "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 1}, done.stderr
    [moment] = json.loads(done.stdout)["moments"]
    return sorted(
        [*(shown(len(one["devices"])) for one in moment["placed"]), *(shown(None) for _ in moment["waiting"])]
    )


def shown(count: int | None) -> str:
    return "waits" if count is None else f"{count} devices"


def scheduled(stage: Stage, count: int) -> list[str]:
    """Return how many devices the scheduler gave each of the pods, or that it can't place one."""

    def judged() -> list[Object]:
        found = stage.cluster.api.list("Pod", stage.namespace)
        return found if len(found) == count and all(is_judged(stage, one) for one in found) else []

    found: Any = until(f"the scheduler has decided on {count} pods", judged, 60)
    return sorted(shown(len(stage.devices(one)) if one["spec"].get("nodeName") else None) for one in found)


def is_judged(stage: Stage, one: Object) -> bool:
    """Return whether the scheduler has decided on a pod, or will not see it, because its claims can't be made."""
    conditions = one.get("status", {}).get("conditions", [])
    is_seen = bool(one["spec"].get("nodeName")) or any(c["type"] == "PodScheduled" for c in conditions)
    return is_seen or any("FailedResourceClaimCreation" in line for line in stage.events(one["metadata"]["name"]))


@pytest.mark.parametrize("shape", SHAPES)
def test_simulate_places_a_manifest_as_the_scheduler_does(
    agent: Agent, stage: Stage, tmp_path: Path, shape: str
) -> None:
    assert agent.devices()
    objects = SHAPES[shape](stage.namespace)
    simulated = offline(stage, objects, tmp_path)
    api = stage.cluster.api
    for one in objects:
        version = one["apiVersion"].rpartition("/")[2]
        path = api.path(one["kind"], namespace=stage.namespace).replace(
            "resource.k8s.io/v1/", f"resource.k8s.io/{version}/"
        )
        api.call("POST", path, one)
    try:
        # The scheduler refuses a pod at first if it has not yet written the allocation of the same claim for another.
        with suppress(NotInTime):
            until("the scheduler agrees", lambda: scheduled(stage, len(simulated)) == simulated, 20)
        assert simulated == scheduled(stage, len(simulated))
    finally:
        for one in objects:
            if one["kind"] == "Deployment":
                api.delete("Deployment", one["metadata"]["name"], stage.namespace)
