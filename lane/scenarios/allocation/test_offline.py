"""What `simulate` says of manifests without a cluster is what the real scheduler does with them.

The shapes are those that first steps with such a driver are made with: a GPU for each pod, one that containers or pods
share, partitions of one GPU, selectors, a configuration, more than there is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lane.agent import Agent
from lane.api import Object
from lane.sandbox import until
from lane.stage import Stage
from lane.workload import claim, container, devices, pod, request, template

DOMAIN = "gpu.nvidia.com"
GPU = devices(request("gpu"))
SIBLINGS = [{"matchAttribute": f"{DOMAIN}/parentUUID"}]
HOPPER = f'device.attributes["{DOMAIN}"].architecture == "Hopper" && device.attributes["{DOMAIN}"].type == "gpu"'
DREAM = f'device.attributes["{DOMAIN}"].?brand.orValue("") == "Dream"'
SLICES = {"kind": "GpuConfig", "apiVersion": "resource.nvidia.com/v1beta1", "sharing": {"strategy": "TimeSlicing"}}
CONFIG = [{"requests": ["gpu"], "opaque": {"driver": DOMAIN, "parameters": SLICES}}]

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
}  # fmt: skip


def offline(stage: Stage, objects: Sequence[Any], folder: Path) -> dict[str, int | None]:
    """Return the number of devices of each pod by `simulate`; None for one that waits."""
    api = stage.cluster.api
    versions = {"Node": "v1", "ResourceSlice": "resource.k8s.io/v1", "DeviceClass": "resource.k8s.io/v1"}
    known = [{"apiVersion": of, "kind": kind, **one} for kind, of in versions.items() for one in api.list(kind)]
    file = folder / "world.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [*known, *objects]}))
    argv = [sys.executable, "-m", "dra_driver", "simulate", "-f", str(file), "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 1}, done.stderr
    moment = json.loads(done.stdout)
    moment = moment["moments"] if isinstance(moment, dict) and "moments" in moment else moment
    [moment] = moment if isinstance(moment, list) else [moment]
    found: dict[str, int | None] = {one["job"].split("/")[-1]: len(one["devices"]) for one in moment["placed"]}
    return found | {one["job"].split("/")[-1]: None for one in moment["waiting"]}


def scheduled(stage: Stage, name: str) -> int | None:
    """Return how many devices the scheduler gave a pod; None for one that it can't place."""

    def judged() -> Object | None:
        one = stage.cluster.api.get("Pod", name, stage.namespace)
        conditions = one.get("status", {}).get("conditions", [])
        return one if one["spec"].get("nodeName") or any(c["type"] == "PodScheduled" for c in conditions) else None

    found: Any = until(f"the scheduler judges pod {name}", judged, 60)
    return len(stage.devices(found)) if found["spec"].get("nodeName") else None


@pytest.mark.parametrize("shape", SHAPES)
def test_a_manifest_comes_out_offline_as_the_scheduler_places_it(
    agent: Agent, stage: Stage, tmp_path: Path, shape: str
) -> None:
    assert agent.devices()
    objects = SHAPES[shape](stage.namespace)
    told = offline(stage, objects, tmp_path)
    stage.create(*objects)
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Pod"]
    assert told == {name: scheduled(stage, name) for name in names}
