"""Random worlds with something unusual in them: what careless drivers publish and hostile tenants ask for.

In: a seed. Out: a world of `worlds.py` in which a few objects are changed: pools of several generations, slices too
many or twice, devices that choose their nodes themselves, counters that nobody has, odd taints, capacities and holders,
and requests of `odd_requests.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from cluster.oracle.odd_requests import AMOUNTS, EFFECTS, OTHER, REQUEST_CHANGES
from cluster.oracle.worlds import DRIVER, NODES, random_world

Wire = dict[str, Any]
_POLICIES: tuple[Wire, ...] = (
    {},
    {"default": "1Gi"},
    {"default": "0", "validValues": ["0", "1Gi", "20Gi"]},
    {"default": "8Gi", "validValues": ["8Gi"]},
    {"default": "1Gi", "validRange": {"min": "1Gi", "step": "3Gi"}},
    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "10Gi", "step": "4Gi"}},
    {"default": "1Gi", "validRange": {"min": "0"}},
    {"validRange": {"min": "2Gi", "max": "4Gi"}},
)
_TERMS: tuple[Wire, ...] = (
    {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]},
    {"matchExpressions": [{"key": "zone", "operator": "Exists"}, {"key": "none", "operator": "DoesNotExist"}]},
    {"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["1"]}]},
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODES[0]]}]},
    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [NODES[0]]}]},
    {},
)


def odd_world(seed: int) -> Wire:
    """Return the world of a seed."""
    random = Random(seed)
    world = copy.deepcopy(random_world(seed))
    for change in random.sample(_CHANGES, random.choice([1, 1, 2, 3, 4])):
        change(world, random)
    return world


def _devices(world: Wire) -> list[Wire]:
    return [device for one in world["slices"] for device in one["spec"].get("devices", ())]


def _copied_slice(world: Wire, random: Random) -> Wire:
    one: Wire = copy.deepcopy(random.choice(world["slices"]))
    one["metadata"]["name"] += random.choice(["-x", "-0", "0"])
    world["slices"].insert(random.randint(0, len(world["slices"])), one)
    return one


def _another_generation(world: Wire, random: Random) -> None:
    _copied_slice(world, random)["spec"]["pool"]["generation"] += random.choice([-1, 1])


def _slice_elsewhere(world: Wire, random: Random) -> None:
    spec = _copied_slice(world, random)["spec"]
    for key in ("nodeName", "nodeSelector", "allNodes"):
        spec.pop(key, None)
    spec |= random.choice([{"nodeName": NODES[1]}, {"nodeName": "nowhere"}, {"allNodes": True}])
    spec["pool"]["generation"] += random.choice([-1, 0, 0, 1])
    for device in spec.get("devices", ()) if random.random() < 0.7 else ():
        device["name"] += "-b"
    for one in world["slices"] if random.random() < 0.7 else ():
        if one["spec"]["pool"]["name"] == spec["pool"]["name"]:
            one["spec"]["pool"]["resourceSliceCount"] += 1


def _another_driver(world: Wire, random: Random) -> None:
    one = _copied_slice(world, random)
    one["spec"]["driver"] = OTHER
    world["classes"][0]["spec"]["selectors"] = []


def _wrong_count(world: Wire, random: Random) -> None:
    random.choice(world["slices"])["spec"]["pool"]["resourceSliceCount"] = random.choice([0, 1, 2, 3])


def _per_device_nodes(world: Wire, random: Random) -> None:
    one = random.choice(world["slices"])["spec"]
    if not one.get("devices"):
        return
    for key in ("nodeName", "nodeSelector", "allNodes"):
        one.pop(key, None)
    one["perDeviceNodeSelection"] = True
    for device in one["devices"]:
        selector = {"nodeSelector": {"nodeSelectorTerms": [random.choice(_TERMS)]}}
        device.update(random.choice([{"nodeName": random.choice(NODES)}, {"allNodes": True}, selector, {}]))


def _node_selector(world: Wire, random: Random) -> None:
    spec = random.choice(world["slices"])["spec"]
    for key in ("nodeName", "allNodes"):
        spec.pop(key, None)
    spec["nodeSelector"] = {"nodeSelectorTerms": random.sample(_TERMS, random.randint(0, 2))}


def _counters(world: Wire, random: Random) -> None:
    device = random.choice(_devices(world))
    name = random.choice(["gpu-0", "gpu-1", "nobody"])
    taken = {random.choice(["memory", "slot-0", "nothing"]): {"value": random.choice(["0", "1", "40Gi", "90Gi"])}}
    device.setdefault("consumesCounters", []).append({"counterSet": name, "counters": taken})


def _counter_sets(world: Wire, random: Random) -> None:
    spec = random.choice(world["slices"])["spec"]
    amount = random.choice(["0", "1", "80Gi"])
    spec.setdefault("sharedCounters", []).append(
        {"name": random.choice(["gpu-0", "gpu-9"]), "counters": {"memory": {"value": amount}}}
    )


def _taints(world: Wire, random: Random) -> None:
    for device in random.sample(_devices(world), min(3, len(_devices(world)))):
        device["taints"] = [
            {"key": random.choice(["sick", "hot"]), "effect": random.choice(EFFECTS)}
            | random.choice([{}, {"value": "x"}, {"value": "y"}])
            for _ in range(random.randint(0, 3))
        ]


def _capacities(world: Wire, random: Random) -> None:
    for device in _devices(world):
        if random.random() < 0.5:
            capacity: Wire = {"value": random.choice(AMOUNTS)}
            if random.random() < 0.7:
                capacity["requestPolicy"] = random.choice(_POLICIES)
            device.setdefault("capacity", {})[random.choice(["memory", "cores", "extra"])] = capacity
            device["allowMultipleAllocations"] = random.random() < 0.8


def _holders(world: Wire, random: Random) -> None:
    results = world["allocated"][0]["status"]["allocation"]["devices"]["results"]
    for one in random.sample(world["slices"], 1):
        for device in one["spec"].get("devices", ())[:3]:
            pool = one["spec"]["pool"]["name"]
            result: Wire = {"request": "r", "driver": one["spec"]["driver"], "pool": pool, "device": device["name"]}
            result["pool"] = random.choice([pool, pool, pool, "gone"])
            result |= random.choice([{}, {"shareID": f"odd-{len(results)}"}, {"adminAccess": True}])
            result |= random.choice([{}, {"consumedCapacity": {"memory": random.choice(["1Gi", "500Gi", "0"])}}])
            results.append(result)
    world["allocated"].append({"metadata": {"name": "freed", "namespace": "default"}, "spec": {}, "status": {}})


def _attributes(world: Wire, random: Random) -> None:
    values: tuple[Wire, ...] = (
        {"int": 1},
        {"string": "1"},
        {"bool": True},
        {"version": "1.0.0"},
        {"version": "1.0.0+b"},
    )
    for device in _devices(world):
        name = random.choice(["index", "model", f"{DRIVER}/index", f"{OTHER}/index"])
        device.setdefault("attributes", {})[name] = random.choice(values)


def _bindings(world: Wire, random: Random) -> None:
    for device in _devices(world):
        if random.random() < 0.4:
            device |= {"bindingConditions": ["ready"], "bindsToNode": random.random() < 0.5}


def _many_devices(world: Wire, random: Random) -> None:
    spec = random.choice(world["slices"])["spec"]
    if spec.get("devices"):
        pattern = spec["devices"][-1]
        count = random.choice([31, 32, 33, 60])
        spec["devices"] += [pattern | {"name": f"many-{number}"} for number in range(count - len(spec["devices"]))]


_CHANGES: tuple[Callable[[Wire, Random], None], ...] = (
    _another_generation,
    _slice_elsewhere,
    _another_driver,
    _wrong_count,
    _per_device_nodes,
    _node_selector,
    _counters,
    _counter_sets,
    _taints,
    _capacities,
    _holders,
    _attributes,
    _bindings,
    _many_devices,
    *REQUEST_CHANGES,
)
