"""Worlds about the search itself: the order of pools, the limit of results, and ends without a result."""

from __future__ import annotations

from cluster.oracle.worlds import DRIVER
from cluster.oracle.written.parts import Wire, apart, make_claim, make_device, world


def orders_worlds() -> dict[str, Wire]:
    """Return a world in which the order of pools decides; versions before 1.36 take them in the order of a Go map."""
    nodes = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    devices = [make_device("gpu-0", shared=False), make_device("gpu-1", shared=False)]
    one = world(*devices, claims=[make_claim({"count": 3})])
    one["nodes"][0]["metadata"]["labels"] = {"zone": "a"}
    (first,) = one["slices"]
    for name, scope in (("everywhere", {"allNodes": True}), ("zone", {"nodeSelector": nodes})):
        rest = {key: value for key, value in first["spec"].items() if key != "nodeName"}
        pool = first["spec"]["pool"] | {"name": name}
        one["slices"].append({"metadata": {"name": name}, "spec": rest | scope | {"pool": pool}})
    return {"order of three pools": one}


def limits_worlds() -> dict[str, Wire]:
    """Return worlds with claims around the limit of 32 results."""
    devices = [make_device(f"gpu-{index}", shared=False) for index in range(40)]
    unknown = {"deviceClassName": "nowhere"}
    wishes: dict[str, list[Wire]] = {
        "32": [{"count": 32}],
        "33": [{"count": 33}],
        "20 and 12": [{"count": 20}, {"count": 12}],
        "20 and 13": [{"count": 20}, {"count": 13}],
        "33 and an unknown class": [{"count": 33}, unknown],
        "an unknown class and 33": [unknown, {"count": 33}],
        "20, 13, and an unknown class": [{"count": 20}, {"count": 13}, unknown],
        "all of 40": [{"allocationMode": "All", "count": 0}],
        "all of 40 and an unknown class": [{"allocationMode": "All", "count": 0}, unknown],
        "2^62 three times": [{"count": 2**62}] * 3,
        "2^63-1 and 5": [{"count": 2**63 - 1}, {"count": 5}],
    }
    return {f"limit: {name}": world(*devices, claims=[make_claim(*wish)]) for name, wish in wishes.items()}


def searches_worlds() -> dict[str, Wire]:
    """Return worlds in which the search ends without a result only after a while."""
    found = {}
    for gpus, parts, wanted in ((3, 4, 4), (4, 3, 5), (4, 7, 5), (5, 3, 6), (6, 4, 7)):
        sets = [{"name": f"gpu-{gpu}", "counters": {"memory": {"value": "80Gi"}}} for gpu in range(gpus)]
        half = {"memory": {"value": "48Gi"}}
        devices = [
            make_device(
                f"gpu-{gpu}-{part}",
                shared=False,
                attributes={"gpu": {"int": gpu}},
                consumesCounters=[{"counterSet": f"gpu-{gpu}", "counters": half}],
            )
            for gpu in range(gpus)
            for part in range(parts)
        ]
        one = world(*devices, claims=[make_claim({"count": wanted})])
        one["slices"] = apart(one["slices"][0], {"sharedCounters": sets})
        found[f"search: {wanted} of {gpus} GPUs in {parts} parts"] = one
        # Each driver of a node names its pool after the node.
        beside = world(*devices, claims=[make_claim({"count": wanted})], selectors=(f'device.driver == "{DRIVER}"',))
        pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
        nic = {"driver": "nic.example.com", "nodeName": "node-1", "pool": pool, "devices": [{"name": "nic-0"}]}
        other = {"metadata": {"name": "nic"}, "spec": nic}
        beside["slices"] = [*apart(beside["slices"][0], {"sharedCounters": sets}), other]
        found[f"search: {wanted} of {gpus} GPUs in {parts} parts, beside a network driver"] = beside
    return found
