"""Random worlds whose requests derive attributes, and whose drivers skip calls of the kubelet (both since 1.37).

In: a seed. Out: a world of `worlds.py` with derived attributes, constraints on them, and skipNodeOperations of slices.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from cluster.oracle.worlds import DRIVER, random_world

Wire = dict[str, Any]
_OWN = f'device.attributes["{DRIVER}"]'
_NAMES = ("example.com/one", "example.com/two", f"{DRIVER}/model", f"{DRIVER}/links")
_EXPRESSIONS = (
    f"{_OWN}.model",
    f"{_OWN}.?model.orValue('none')",
    f"string({_OWN}.model).size() % 2",
    f'device.capacity["{DRIVER}"].memory.asInteger() % 3',
    f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("20Gi"))',
    f"{_OWN}.?links.orValue(['none'])",
    f"{_OWN}.ports",
    "device.driver",
    "device.allowMultipleAllocations",
    'semver("1.2.3")',
    "[1, 2]",
    f"dyn({_OWN}.?numa)",
    "1.5",
    "dyn(2.5)",
)


def deriving_world(seed: int) -> Wire:
    """Return the world of a seed."""
    random = Random(seed)
    world = copy.deepcopy(random_world(seed))
    world["features"] |= {"DerivedAttributes": random.random() < 0.9, "OptionalNodeOperations": random.random() < 0.5}
    for node in world["nodes"]:
        node["status"] = {"declaredFeatures": random.choice([[], ["DRAOptionalNodeOperations"], ["Other"]])}
    for one in world["slices"]:
        if one["spec"].get("devices") and random.random() < 0.2:
            one["spec"]["skipNodeOperations"] = random.choice([["*"], ["Prepare"], []])
    for claim in world["claims"]:
        _derive(claim["spec"]["devices"], random)
    return world


def _derive(devices: Wire, random: Random) -> None:
    for request in devices["requests"]:
        for wish in request.get("firstAvailable") or [request["exactly"]]:
            if random.random() < 0.8:
                names = random.sample(_NAMES, random.choice([1, 1, 2]))
                likely = _EXPRESSIONS[:-3] if random.random() < 0.8 else _EXPRESSIONS
                wish["derivedAttributes"] = [{"name": name, "expression": random.choice(likely)} for name in names]
    if random.random() < 0.9:
        kinds = random.choices(("matchAttribute", "distinctAttribute"), (3, 1), k=random.choice([1, 1, 2]))
        devices["constraints"] = [{kind: random.choice(_NAMES)} for kind in kinds]
