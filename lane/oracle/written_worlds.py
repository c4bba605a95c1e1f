"""Worlds written by hand: one for each rule of the allocator that random worlds reach too rarely.

In: nothing. Out: worlds, by the rule that they are about.
"""

from __future__ import annotations

from typing import Any

from lane.oracle.worlds import DRIVER, SWITCHES

Wire = dict[str, Any]


def written_worlds() -> dict[str, Wire]:
    """Return the worlds, by name."""
    return {
        **_ranges(),
        **_held(),
        **_gates(),
        **_groups(),
        **_lists(),
        **_orders(),
        **_limits(),
        **_searches(),
    }


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


def _device(name: str, *, cores: Wire | None = None, shared: bool = True, **more: Any) -> Wire:
    capacity = {} if cores is None else {"capacity": {"cores": cores}}
    return {"name": name, "allowMultipleAllocations": shared, **capacity, **more}


def _claim(*wishes: Wire, constraints: tuple[Wire, ...] = (), name: str = "claim") -> Wire:
    requests = [
        {"name": f"r{index}", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1} | wish}
        for index, wish in enumerate(wishes)
    ]
    spec: Wire = {"requests": requests} | ({"constraints": list(constraints)} if constraints else {})
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": spec}}


def _asks(amount: str) -> Wire:
    return {"capacity": {"requests": {"cores": amount}}}


def _ranges() -> dict[str, Wire]:
    """Return worlds with requests in ranges of whole units and of thousandths."""
    policies: dict[str, Wire] = {
        "fractional": {"default": "200m", "validRange": {"min": "200m", "max": "3", "step": "100m"}},
        "fine": {"default": "1", "validRange": {"min": "1", "max": "3", "step": "500u"}},
        "whole": {"default": "1", "validRange": {"min": "1", "max": "3", "step": "1"}},
        "unbounded": {"default": "1", "validRange": {"min": "1", "step": "1"}},
        "binary": {"default": "1Ki", "validRange": {"min": "1Ki", "step": "1Ki"}},
        "bounded": {"default": "1", "validRange": {"min": "1", "max": "2"}},
        "values": {"default": "1", "validValues": ["1", "1500m", "2"]},
    }
    amounts = ("250m", "300m", "2950m", "1", "1500m", "1501m", "100u", "-1", "-250m", "0")
    huge = ("9223372036854775807", "9223372036854775808", "18446744073709551616", "18446744073709551617", "1e19", "8Ei")
    found = {}
    for name, policy in policies.items():
        for amount in (*amounts, *huge):
            for total in ("3", "1e30"):
                device = _device("gpu-0", cores={"value": total, "requestPolicy": policy})
                found[f"range {name} {amount} of {total}"] = world(device, claims=[_claim(_asks(amount))])
    for amount in ("-1", "-250m", *huge):
        found[f"no policy {amount}"] = world(_device("gpu-0", cores={"value": "4"}), claims=[_claim(_asks(amount))])
        pair = [_claim(_asks(amount)), _claim(_asks("4"), name="second")]
        found[f"no policy {amount}, then all"] = world(_device("gpu-0", cores={"value": "4"}), claims=pair)
    return found


def _held() -> dict[str, Wire]:
    """Return worlds with devices of which a part is in use."""
    found = {}
    for name, more in {
        "share without consumedCapacity": {"shareID": "held-1"},
        "share with empty consumedCapacity": {"shareID": "held-1", "consumedCapacity": {}},
        "share of all": {"shareID": "held-1", "consumedCapacity": {"cores": "4"}},
        "no share": {},
        "admin": {"adminAccess": True},
    }.items():
        result = {"request": "r", "driver": DRIVER, "pool": "node-1", "device": "gpu-0", **more}
        status = {"allocation": {"devices": {"results": [result]}}}
        held = [{"metadata": {"name": "held", "namespace": "default"}, "spec": {}, "status": status}]
        counters = {"counterSet": "gpu", "counters": {"slot": {"value": "1"}}}
        sets = [{"name": "gpu", "counters": {"slot": {"value": "1"}}}]
        for kind, device in {
            "shared": _device("gpu-0", cores={"value": "4"}),
            "plain": _device("gpu-0", cores={"value": "4"}, shared=False),
            "without capacity": _device("gpu-0"),
        }.items():
            for off in ((), ("ConsumableCapacity",), ("ConsumableCapacity", "DeviceBindingAndStatus")):
                wish = [_claim({})]
                found[f"held {name}, {kind}, {len(off)} off"] = world(device, claims=wish, allocated=held, off=off)
        first = _device("gpu-0", cores={"value": "4"}, consumesCounters=[counters])
        second = _device("gpu-1", cores={"value": "4"}, consumesCounters=[counters])
        for both in ((first, second), (second, first)):
            one = world(*both, claims=[_claim({})], allocated=held, slice={"sharedCounters": sets})
            found[f"held {name}, counters, {both[0]['name']} first, one slice"] = one
            two = world(*both, claims=[_claim({})], allocated=held)
            two["slices"] = _apart(two["slices"][0], {"sharedCounters": sets})
            found[f"held {name}, counters, {both[0]['name']} first, two slices"] = two
    return found


def _apart(one: Wire, part: Wire) -> list[Wire]:
    """Return worlds with the counters in another slice of the pool."""
    pool = one["spec"]["pool"] | {"resourceSliceCount": 2}
    rest = {key: value for key, value in one["spec"].items() if key != "devices"} | {"pool": pool}
    return [
        {"metadata": {"name": "counters"}, "spec": rest | part},
        {"metadata": one["metadata"], "spec": one["spec"] | {"pool": pool}},
    ]


def _gates() -> dict[str, Wire]:
    """Return worlds with pairs of gates, for their effect on selectors and pools."""
    found = {}
    shown = ("device.allowMultipleAllocations",)
    for off in (
        (),
        ("ConsumableCapacity",),
        ("DeviceBindingAndStatus",),
        ("ConsumableCapacity", "DeviceBindingAndStatus"),
    ):
        for fractional in (True, False):
            name = f"{' and '.join(off) or 'nothing'} off, {'with' if fractional else 'without'} fractions"
            found[f"selector on sharing, {name}"] = world(
                _device("gpu-0"),
                claims=[_claim({}, {})],
                off=off,
                selectors=shown,
                features={"FractionalCapacityRange": fractional},
            )
            found[f"distinct, {name}"] = world(
                *(_device(f"gpu-{index}", shared=False, attributes={"index": {"int": index}}) for index in range(2)),
                claims=[_claim({"count": 2}, constraints=({"distinctAttribute": f"{DRIVER}/index"},))],
                off=off,
                features={"FractionalCapacityRange": fractional},
            )
    counters = {"counterSet": "gpu", "counters": {"slot": {"value": "1"}}, "compatibilityGroups": ["alike"]}
    sets = [{"name": "gpu", "counters": {"slot": {"value": "2"}}}]
    grouped = _device("gpu-0", shared=False, consumesCounters=[counters])
    other = _device("gpu-1", shared=False)
    for mode in ({}, {"allocationMode": "All", "count": 0}):
        one = world(grouped, other, claims=[_claim(mode)])
        one["slices"] = _apart(one["slices"][0], {"sharedCounters": sets})
        found[f"compatibility groups while their gate is off, {mode.get('allocationMode', 'one')}"] = one
        for off in (
            ("ConsumableCapacity", "DeviceBindingAndStatus", "FractionalCapacityRange"),
            ("PartitionableDevices",),
        ):
            also = world(grouped, other, claims=[_claim(mode)], off=off)
            also["slices"] = _apart(also["slices"][0], {"sharedCounters": sets})
            found[f"compatibility groups, {len(off)} off, {mode.get('allocationMode', 'one')}"] = also
    return found


def _groups() -> dict[str, Wire]:
    """Return worlds with parts of GPUs that name their company, some of them in use, some drawing from two GPUs."""
    companies: dict[str, list[list[str]]] = {
        "alike": [["a"], ["a"], ["a"]],
        "chain": [["a", "b"], ["b", "c"], ["c", "a"]],
        "apart": [["a"], ["b"], ["a"]],
        "some without": [["a"], [], ["a"], []],
        "none": [[], [], []],
    }
    found = {}
    for name, groups in companies.items():
        for held in (None, 0, 1):
            for gpus in (1, 2):
                for wishes in ([{}], [{"count": 2}], [{}, {}], [{"count": 3}], [{"allocationMode": "All", "count": 0}]):
                    devices = [
                        _device(f"part-{index}", shared=False, consumesCounters=_draws(index, one, gpus))
                        for index, one in enumerate(groups)
                    ]
                    result = {"request": "r", "driver": DRIVER, "pool": "node-1", "device": f"part-{held}"}
                    status = {"allocation": {"devices": {"results": [result]}}}
                    holder = {"metadata": {"name": "held", "namespace": "default"}, "spec": {}, "status": status}
                    one_world = world(
                        *devices,
                        claims=[_claim(*wishes)],
                        allocated=[] if held is None else [holder],
                        features={"CompatibilityGroups": True},
                    )
                    sets = [{"name": f"gpu-{gpu}", "counters": {"slot": {"value": "4"}}} for gpu in range(gpus)]
                    one_world["slices"] = _apart(one_world["slices"][0], {"sharedCounters": sets})
                    found[f"groups {name}, {held} held, {gpus} GPUs, {wishes}"] = one_world
    return found


def _draws(index: int, groups: list[str], gpus: int) -> list[Wire]:
    """Return what a part draws: of two GPUs the even parts draw from both, the odd ones from the second."""
    slot = {"slot": {"value": "1"}}
    names = [f"gpu-{gpu}" for gpu in range(gpus)][index % 2 if gpus > 1 else 0 :]
    said = {"compatibilityGroups": groups} if groups else {}
    return [{"counterSet": name, "counters": slot} | said for name in names]


def _lists() -> dict[str, Wire]:
    """Return worlds with constraints on attributes that are lists, or whose kinds differ."""
    values: dict[str, list[Wire]] = {
        "chain": [{"strings": ["a", "b"]}, {"strings": ["b", "c"]}, {"strings": ["c", "a"]}],
        "common": [{"strings": ["a", "b"]}, {"string": "b"}, {"strings": ["b", "c"]}],
        "ints": [{"ints": [1, 2]}, {"int": 2}, {"ints": [3]}],
        "kinds": [{"int": 1}, {"string": "1"}, {"ints": [1]}],
        "empty": [{"strings": []}, {"strings": ["a"]}, {"strings": ["a"]}],
        "versions": [{"versions": ["1.0.0", "2.0.0"]}, {"version": "2.0.0"}, {"versions": ["1.0.0"]}],
        "equal": [{"bools": [True]}, {"bool": True}, {"bool": False}],
    }
    found = {}
    for name, attributes in values.items():
        for kind in ("matchAttribute", "distinctAttribute"):
            for wishes in ([{"count": 2}], [{}, {}], [{"count": 3}], [{"allocationMode": "All", "count": 0}]):
                for lists in (True, False):
                    devices = [
                        _device(f"gpu-{index}", shared=False, attributes={"links": value})
                        for index, value in enumerate(attributes)
                    ]
                    claims = [_claim(*wishes, constraints=({kind: f"{DRIVER}/links"},))]
                    text = f"{kind} {name} {wishes} {'as lists' if lists else ''}"
                    found[text] = world(*devices, claims=claims, features={"ListTypeAttributes": lists})
    return found


def _orders() -> dict[str, Wire]:
    """Return a world in which the order of pools decides; versions before 1.36 take them in the order of a Go map."""
    nodes = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    devices = [_device("gpu-0", shared=False), _device("gpu-1", shared=False)]
    one = world(*devices, claims=[_claim({"count": 3})])
    one["nodes"][0]["metadata"]["labels"] = {"zone": "a"}
    (first,) = one["slices"]
    for name, scope in (("everywhere", {"allNodes": True}), ("zone", {"nodeSelector": nodes})):
        rest = {key: value for key, value in first["spec"].items() if key != "nodeName"}
        pool = first["spec"]["pool"] | {"name": name}
        one["slices"].append({"metadata": {"name": name}, "spec": rest | scope | {"pool": pool}})
    return {"order of three pools": one}


def _limits() -> dict[str, Wire]:
    """Return worlds with claims around the limit of 32 results."""
    devices = [_device(f"gpu-{index}", shared=False) for index in range(40)]
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
    return {f"limit: {name}": world(*devices, claims=[_claim(*wish)]) for name, wish in wishes.items()}


def _searches() -> dict[str, Wire]:
    """Return worlds in which the search ends without a result only after a while."""
    found = {}
    for gpus, parts, wanted in ((3, 4, 4), (4, 3, 5), (4, 7, 5), (5, 3, 6), (6, 4, 7)):
        sets = [{"name": f"gpu-{gpu}", "counters": {"memory": {"value": "80Gi"}}} for gpu in range(gpus)]
        half = {"memory": {"value": "48Gi"}}
        devices = [
            _device(
                f"gpu-{gpu}-{part}",
                shared=False,
                attributes={"gpu": {"int": gpu}},
                consumesCounters=[{"counterSet": f"gpu-{gpu}", "counters": half}],
            )
            for gpu in range(gpus)
            for part in range(parts)
        ]
        one = world(*devices, claims=[_claim({"count": wanted})])
        one["slices"] = _apart(one["slices"][0], {"sharedCounters": sets})
        found[f"search: {wanted} of {gpus} GPUs in {parts} parts"] = one
        # Each driver of a node names its pool after the node.
        beside = world(*devices, claims=[_claim({"count": wanted})], selectors=(f'device.driver == "{DRIVER}"',))
        pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
        nic = {"driver": "nic.example.com", "nodeName": "node-1", "pool": pool, "devices": [{"name": "nic-0"}]}
        other = {"metadata": {"name": "nic"}, "spec": nic}
        beside["slices"] = [*_apart(beside["slices"][0], {"sharedCounters": sets}), other]
        found[f"search: {wanted} of {gpus} GPUs in {parts} parts, beside a network driver"] = beside
    return found
