"""A fleet in use: claims that hold GPUs and partitions, claims that wait, a GPU that is tainted.

In: a folder. Out: a file for `dra-driver console -f`, made from simulated nodes as their agents would publish them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dra_driver.tools.world.world import World, add_profiles, apply_rules

PROFILES = ("dgx-h100=4", "demo-h100=2", "dgx-a100=2", "l40s=2")
DRIVER = "gpu.nvidia.com"
SINCE = "2026-01-12T09:30:00Z"


def write_scene(folder: Path) -> str:
    """Write the file, and return its path."""
    world = World()
    rules = apply_rules(world, "1.36", {})
    add_profiles(world, PROFILES)
    assert rules.kubernetes == "1.36"
    slices = [plain(one) for one in world.of("ResourceSlice")]
    claims = list(held(slices))
    taint_one(slices)
    claims.append(claim("team-research", "eight-gpus", count=8))
    claims.append(
        claim(
            "team-serving", "next-replica", selector='device.attributes["gpu.nvidia.com"].productName.contains("B200")'
        )
    )
    path = folder / "fleet.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [*slices, *claims]}))
    return str(path)


def plain(one: dict[str, Any]) -> dict[str, Any]:
    spec = {**one["spec"]}
    if "devices" in spec:
        spec["devices"] = [dict(device) for device in spec["devices"]]
    return {"apiVersion": "resource.k8s.io/v1", **one, "spec": spec}


def claim(
    namespace: str, name: str, device: tuple[str, str] | None = None, count: int = 1, selector: str = ""
) -> dict[str, Any]:
    wanted: dict[str, Any] = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    if selector:
        wanted["selectors"] = [{"cel": {"expression": selector}}]
    metadata = {"namespace": namespace, "name": name, "creationTimestamp": SINCE}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    made["spec"] = {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}}
    if device:
        result = {"request": "gpu", "driver": DRIVER, "pool": device[0], "device": device[1]}
        users = [{"resource": "pods", "name": f"{name}-0", "uid": name}]
        made["status"] = {
            "allocation": {"devices": {"results": [result]}, "allocationTimestamp": SINCE},
            "reservedFor": users,
        }
    return made


def held(slices: list[dict[str, Any]]):
    """Yield claims that hold every third GPU, and partitions of some others."""
    number = 0
    for one in slices:
        node = one["spec"]["pool"]["name"]
        gpus: dict[str, list[str]] = {}
        for device in one["spec"].get("devices", ()) if one["spec"]["driver"] == DRIVER else ():
            gpus.setdefault(device["name"].partition("-mig-")[0], []).append(device["name"])
        for gpu, names in gpus.items():
            number += 1
            parts = [name for name in names if "-mig-" in name]
            if number % 3 == 0 and gpu in names:
                yield claim("team-training", f"train-{number}", (node, gpu))
            elif number % 5 == 1 and parts:
                small = [name for name in parts if "-mig-1g" in name and "me" not in name] or parts[:1]
                for name in small[: 1 + number % 3]:
                    yield claim("team-notebooks", f"notebook-{number}-{name[-1]}", (node, name))


def taint_one(slices: list[dict[str, Any]]) -> None:
    """Taint a GPU that is lost, with all its partitions."""
    one = next(one for one in slices if one["spec"]["driver"] == DRIVER and len(one["spec"].get("devices", ())) > 4)
    lost = one["spec"]["devices"][0]["name"].partition("-mig-")[0]
    for device in one["spec"]["devices"]:
        if device["name"].startswith(lost):
            device["taints"] = [{"key": f"{DRIVER}/lost", "effect": "NoExecute", "timeAdded": SINCE}]
