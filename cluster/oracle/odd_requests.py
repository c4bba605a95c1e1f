"""Changes to what the claims of a random world ask for, as hostile tenants might write it.

In: a world and a source of randomness. Out: the same world, changed: constraints of alternatives and of attributes that
nobody has, tolerations, amounts of capacity, numbers of devices, selectors that fail, classes that do not exist.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from cluster.oracle.worlds import DRIVER

Wire = dict[str, Any]
OTHER = "nic.example.com"
EFFECTS = ("NoSchedule", "NoExecute", "None", "", "Unknown")
AMOUNTS = ("0", "1", "1m", "40Gi", "200Gi", "5Gi", "-1", "9223372036854775807", "1e30", "100n")
_SELECTORS = (
    f'device.attributes["{DRIVER}"].nothing == 1',
    'device.attributes["nobody.example.com"].model == "x"',
    f'device.capacity["{DRIVER}"].cores.isInteger()',
    f'device.attributes["{DRIVER}"].index == 1 || device.attributes["{DRIVER}"].nothing == 1',
    "device.driver",
    "true",
    "1 / 0 == 1",
    f'device.driver == "{OTHER}"',
)


def _requests(world: Wire) -> list[Wire]:
    """Return all requests and alternatives, as the objects that name a class."""
    found = [one for claim in world["claims"] for one in claim["spec"]["devices"]["requests"]]
    return [wish for one in found for wish in one.get("firstAvailable", [one.get("exactly")]) if wish]


def _wanted_capacities(world: Wire, random: Random) -> None:
    for wish in _requests(world):
        names = random.sample(["memory", "cores", "extra", f"{DRIVER}/memory"], random.randint(0, 2))
        wish["capacity"] = {"requests": {name: random.choice(AMOUNTS) for name in names}}


def _tolerations(world: Wire, random: Random) -> None:
    for wish in _requests(world):
        wish["tolerations"] = [
            {key: value for key, value in _toleration(random).items() if value != ""}
            for _ in range(random.randint(0, 3))
        ]


def _toleration(random: Random) -> Wire:
    return {
        "key": random.choice(["", "sick", "hot"]),
        "operator": random.choice(["", "Exists", "Equal", "Other"]),
        "value": random.choice(["", "x", "y"]),
        "effect": random.choice(["", *EFFECTS]),
        "tolerationSeconds": random.choice(["", "", 0, 30]),
    }


def _constraints(world: Wire, random: Random) -> None:
    devices = random.choice(world["claims"])["spec"]["devices"]
    names = [one["name"] for one in devices["requests"]]
    names += [f"{one['name']}/{two['name']}" for one in devices["requests"] for two in one.get("firstAvailable", ())]
    if not names:
        return
    devices["constraints"] = [
        {random.choice(["matchAttribute", "matchAttribute", "distinctAttribute"]): name}
        | ({"requests": random.sample(names, random.randint(1, len(names)))} if random.random() < 0.6 else {})
        for name in random.sample(
            [f"{DRIVER}/index", f"{DRIVER}/model", f"{DRIVER}/links", f"{DRIVER}/nothing", f"{OTHER}/index"], 2
        )
    ]


def _modes(world: Wire, random: Random) -> None:
    for wish in _requests(world):
        mode = random.choice(["All", "All", "ExactCount"])
        wish["allocationMode"] = mode
        wish.pop("count", None)
        if mode == "ExactCount":
            wish["count"] = random.choice([1, 2, 8, 32, 33])


def _classes(world: Wire, random: Random) -> None:
    wish = random.choice(_requests(world))
    wish["deviceClassName"] = random.choice(["nobody", "broken", "any"])
    config = [{"opaque": {"driver": DRIVER, "parameters": {"kind": "Class"}}}]
    broken = {"selectors": [{"cel": {"expression": random.choice(_SELECTORS)}}], "config": config}
    world["classes"].append({"metadata": {"name": "broken"}, "spec": broken})


def _selectors(world: Wire, random: Random) -> None:
    wish = random.choice(_requests(world))
    wish["selectors"] = [{"cel": {"expression": one}} for one in random.sample(_SELECTORS, random.randint(1, 2))]


def _admin(world: Wire, random: Random) -> None:
    for one in (one for claim in world["claims"] for one in claim["spec"]["devices"]["requests"]):
        if "exactly" in one and random.random() < 0.7:
            one["exactly"]["adminAccess"] = random.random() < 0.8


def _more_claims(world: Wire, random: Random) -> None:
    one = copy.deepcopy(random.choice(world["claims"]))
    one["metadata"]["name"] += "-again"
    if random.random() < 0.3:
        one["spec"] = {"devices": {"requests": []}}
    world["claims"].append(one)


REQUEST_CHANGES: tuple[Callable[[Wire, Random], None], ...] = (
    _wanted_capacities,
    _tolerations,
    _constraints,
    _modes,
    _classes,
    _selectors,
    _admin,
    _more_claims,
)
