"""The allocator: whole passes over big clusters, and requests that can't be met.

The peer is Kubernetes' own allocator in Go (AMD EPYC, GOMAXPROCS=1, warm selectors, one allocator for all nodes).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.figures import Report
from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.rules import Features

DRIVER = "gpu.nvidia.com"
CLASS = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
BY_NAME = (
    f'device.attributes["{DRIVER}"].productName == "NVIDIA H100 80GB HBM3"'
    f' && device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'
)
BY_MEMORY = (
    f'device.attributes["{DRIVER}"].architecture == "Hopper"'
    f' && device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'
)
MIG = Features(admin_access=True, prioritized_list=True, partitionable=True, taints=True)
# profile: (memory in GiB, memory slices, places)
PROFILES = {
    "1g.10gb": (10, 1, range(7)),
    "1g.20gb": (20, 2, range(0, 8, 2)),
    "2g.20gb": (20, 2, range(0, 6, 2)),
    "3g.40gb": (40, 4, range(0, 8, 4)),
    "4g.40gb": (40, 4, range(1)),
    "7g.80gb": (80, 8, range(1)),
}

Wire = dict[str, Any]


def run(report: Report) -> None:
    """Measure passes and refusals."""
    for count, budgets in ((1000, (25, 75, 75)), (5000, (1000, 1000, 1000))):
        for name, expression, matching, budget, peer in (
            ("every node matches", BY_NAME, range(count), budgets[0], "48 (Go)"),
            ("only the last matches, others fail by name", BY_NAME, [count - 1], budgets[1], "193 (Go)"),
            ("only the last matches, others fail by memory", BY_MEMORY, [count - 1], budgets[2], "206 (Go)"),
        ):
            slices, nodes = _fleet(count, set(matching))
            took = _median(partial(_pass, slices, nodes, _claim(expression, 1)))
            label = f"allocate, {count} nodes x 8 GPUs, {name}"
            report.add(label, took * 1e3, "ms", budget=budget, peer=peer if count == 1000 else "")
    for count, profile, gpus, limit, peer in (
        (4, "1g.10gb", 8, None, "0.18 (Go)"),
        (4, "7g.80gb", 8, None, "1.69 (Go)"),
        (9, "4g.40gb", 8, 20, "3400 (Go)"),
        (17, "3g.40gb", 8, None, "does not end (Go)"),
    ):
        slices, nodes = _partitioned(gpus)
        claim = _claim(f'device.attributes["{DRIVER}"].profile == "{profile}"', count)
        took = _median(partial(_pass, slices, nodes, claim, features=MIG))
        report.add(f"allocate {count} x {profile} of {gpus} GPUs", took * 1e3, "ms", budget=limit, peer=peer)


def _pass(slices: Sequence[Wire], nodes: Sequence[Wire], claim: Wire, *, features: Features | None = None) -> None:
    """Run one pass: everything after parsing the slices, for all nodes."""
    allocator = Allocator(slices=slices, classes=[CLASS], kubernetes="1.35", features=features)
    pod = allocator.for_claims([claim])
    for node in nodes:
        pod.allocate(node)


def _median(work: Callable[[], None], rounds: int = 15) -> float:
    seconds = []
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    gc.unfreeze()
    return statistics.median(seconds)


def _claim(expression: str, count: int) -> Wire:
    exactly = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    metadata = {"name": "claim", "namespace": "default", "uid": "1"}
    return {"metadata": metadata, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


def _fleet(count: int, matching: set[int]) -> tuple[list[Wire], list[Wire]]:
    slices, nodes = [], []
    for number in range(count):
        name = f"node-{number}"
        product, memory = ("H100 80GB HBM3", "80Gi") if number in matching else ("A100-SXM4-40GB", "40Gi")
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {
                    "index": {"int": index},
                    "uuid": {"string": f"GPU-{number}-{index}"},
                    "productName": {"string": f"NVIDIA {product}"},
                    "architecture": {"string": "Hopper"},
                    "driverVersion": {"version": "580.65.6"},
                    "cudaComputeCapability": {"version": "9.0.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index}"},
                },
                "capacity": {"memory": {"value": memory}},
            }
            for index in range(8)
        ]
        slices.append(_slice(name, "devices", 1, devices=devices))
        nodes.append({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    return slices, nodes


def _slice(node: str, suffix: str, count: int, **content: Any) -> Wire:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    return {
        "metadata": {"name": f"{node}-{suffix}"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **content},
    }


def _partitioned(gpus: int) -> tuple[list[Wire], list[Wire]]:
    sets: list[Wire] = []
    devices: list[Wire] = []
    for gpu in range(gpus):
        slots = {f"memory-slice-{slot}": {"value": "1"} for slot in range(8)}
        sets.append({"name": f"gpu-{gpu}", "counters": {"memory": {"value": "80Gi"}, **slots}})
        for profile, (memory, width, places) in PROFILES.items():
            for place in places:
                taken = {f"memory-slice-{slot}": {"value": "1"} for slot in range(place, place + width)}
                counters = {"memory": {"value": f"{memory}Gi"}, **taken}
                devices.append(
                    {
                        "name": f"gpu-{gpu}-{profile.replace('.', '-')}-{place}",
                        "attributes": {"profile": {"string": profile}, "index": {"int": gpu}},
                        "capacity": {"memory": {"value": f"{memory}Gi"}},
                        "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": counters}],
                    }
                )
    slices = [_slice("node", "counters", 2, sharedCounters=sets), _slice("node", "devices", 2, devices=devices)]
    return slices, [{"metadata": {"name": "node"}}]
