"""Worlds about pairs of gates."""

from __future__ import annotations

from cluster.oracle.worlds import DRIVER
from cluster.oracle.written.parts import Wire, apart, make_claim, make_device, world


def gates_worlds() -> dict[str, Wire]:
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
                make_device("gpu-0"),
                claims=[make_claim({}, {})],
                off=off,
                selectors=shown,
                features={"FractionalCapacityRange": fractional},
            )
            found[f"distinct, {name}"] = world(
                *(
                    make_device(f"gpu-{index}", shared=False, attributes={"index": {"int": index}})
                    for index in range(2)
                ),
                claims=[make_claim({"count": 2}, constraints=({"distinctAttribute": f"{DRIVER}/index"},))],
                off=off,
                features={"FractionalCapacityRange": fractional},
            )
    return found | _compatibility_worlds()


def _compatibility_worlds() -> dict[str, Wire]:
    """Return worlds with compatibility groups while their gate is off, and with other gates off too."""
    found = {}
    counters = {"counterSet": "gpu", "counters": {"slot": {"value": "1"}}, "compatibilityGroups": ["alike"]}
    sets = [{"name": "gpu", "counters": {"slot": {"value": "2"}}}]
    grouped = make_device("gpu-0", shared=False, consumesCounters=[counters])
    other = make_device("gpu-1", shared=False)
    for mode in ({}, {"allocationMode": "All", "count": 0}):
        one = world(grouped, other, claims=[make_claim(mode)])
        one["slices"] = apart(one["slices"][0], {"sharedCounters": sets})
        found[f"compatibility groups while their gate is off, {mode.get('allocationMode', 'one')}"] = one
        for off in (
            ("ConsumableCapacity", "DeviceBindingAndStatus", "FractionalCapacityRange"),
            ("PartitionableDevices",),
        ):
            also = world(grouped, other, claims=[make_claim(mode)], off=off)
            also["slices"] = apart(also["slices"][0], {"sharedCounters": sets})
            found[f"compatibility groups, {len(off)} off, {mode.get('allocationMode', 'one')}"] = also
    return found
