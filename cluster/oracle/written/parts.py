"""Parts of worlds that are written by hand: a world, its devices and its claims."""

from __future__ import annotations

from typing import Any

from cluster.oracle.worlds import DRIVER, SWITCHES

Wire = dict[str, Any]


def world(*devices: Wire, claims: list[Wire], off: tuple[str, ...] = (), **more: Any) -> Wire:
    """Return a world of one node and one slice, with all gates on that are not alpha, except those given."""
    alpha = ("ListTypeAttributes", "CompatibilityGroups")
    features = {name: name not in (*alpha, *off) for name in SWITCHES} | more.pop("features", {})
    features |= dict.fromkeys(("DeviceBinding", "DeviceStatus"), features["DeviceBindingAndStatus"])
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": list(devices)}
    selectors = more.pop("selectors", ())
    rules = [{"cel": {"expression": one}} for one in selectors]
    return {
        "features": features,
        "nodes": [{"metadata": {"name": "node-1"}}],
        "classes": [{"metadata": {"name": "any"}, "spec": {"selectors": rules}}],
        "slices": [{"metadata": {"name": "slice-1"}, "spec": spec | more.pop("slice", {})}],
        "allocated": more.pop("allocated", []),
        "claims": claims,
    }


def make_device(name: str, *, cores: Wire | None = None, shared: bool = True, **more: Any) -> Wire:
    capacity = {} if cores is None else {"capacity": {"cores": cores}}
    return {"name": name, "allowMultipleAllocations": shared, **capacity, **more}


def make_claim(*wishes: Wire, constraints: tuple[Wire, ...] = (), name: str = "claim") -> Wire:
    requests = [
        {"name": f"r{index}", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1} | wish}
        for index, wish in enumerate(wishes)
    ]
    spec: Wire = {"requests": requests} | ({"constraints": list(constraints)} if constraints else {})
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": spec}}


def asks(amount: str) -> Wire:
    return {"capacity": {"requests": {"cores": amount}}}


def apart(one: Wire, part: Wire) -> list[Wire]:
    """Return the slices of a pool whose counters are in a slice of their own."""
    pool = one["spec"]["pool"] | {"resourceSliceCount": 2}
    rest = {key: value for key, value in one["spec"].items() if key != "devices"} | {"pool": pool}
    return [
        {"metadata": {"name": "counters"}, "spec": rest | part},
        {"metadata": one["metadata"], "spec": one["spec"] | {"pool": pool}},
    ]
