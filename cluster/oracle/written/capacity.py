"""Worlds about capacity: requests in ranges, and devices of which a part is in use."""

from __future__ import annotations

from cluster.oracle.worlds import DRIVER
from cluster.oracle.written.parts import Wire, apart, asks, make_claim, make_device, world


def ranges_worlds() -> dict[str, Wire]:
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
                device = make_device("gpu-0", cores={"value": total, "requestPolicy": policy})
                found[f"range {name} {amount} of {total}"] = world(device, claims=[make_claim(asks(amount))])
    for amount in ("-1", "-250m", *huge):
        found[f"no policy {amount}"] = world(
            make_device("gpu-0", cores={"value": "4"}), claims=[make_claim(asks(amount))]
        )
        pair = [make_claim(asks(amount)), make_claim(asks("4"), name="second")]
        found[f"no policy {amount}, then all"] = world(make_device("gpu-0", cores={"value": "4"}), claims=pair)
    return found


def held_worlds() -> dict[str, Wire]:
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
        for kind, device in {
            "shared": make_device("gpu-0", cores={"value": "4"}),
            "plain": make_device("gpu-0", cores={"value": "4"}, shared=False),
            "without capacity": make_device("gpu-0"),
        }.items():
            for off in ((), ("ConsumableCapacity",), ("ConsumableCapacity", "DeviceBindingAndStatus")):
                wish = [make_claim({})]
                found[f"held {name}, {kind}, {len(off)} off"] = world(device, claims=wish, allocated=held, off=off)
        found |= _held_with_counters(name, held)
    return found


def _held_with_counters(name: str, held: list[Wire]) -> dict[str, Wire]:
    """Return worlds in which the device in use and another one draw from the same counters."""
    found = {}
    counters = {"counterSet": "gpu", "counters": {"slot": {"value": "1"}}}
    sets = [{"name": "gpu", "counters": {"slot": {"value": "1"}}}]
    first = make_device("gpu-0", cores={"value": "4"}, consumesCounters=[counters])
    second = make_device("gpu-1", cores={"value": "4"}, consumesCounters=[counters])
    for both in ((first, second), (second, first)):
        one = world(*both, claims=[make_claim({})], allocated=held, slice={"sharedCounters": sets})
        found[f"held {name}, counters, {both[0]['name']} first, one slice"] = one
        two = world(*both, claims=[make_claim({})], allocated=held)
        two["slices"] = apart(two["slices"][0], {"sharedCounters": sets})
        found[f"held {name}, counters, {both[0]['name']} first, two slices"] = two
    return found
