"""Validity: what the API server or the scheduler would reject in a pool.

In: the content of a pool. Out: descriptions of the faults. Pure.

Source: Kubernetes API resource/v1 validation; from 1.35 on only the scheduler checks references between slices, and
it skips the whole pool if one is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dra_driver.controller.content import PoolContent
from dra_driver.model import limits, names
from dra_driver.model.kubernetes import Since, is_before
from dra_driver.model.wire import DeviceWire, Wire

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


def find_faults(content: PoolContent, *, server_minor: int) -> tuple[str, ...]:
    """Return every reason for which this pool would be refused or skipped; an empty tuple if it is valid."""
    is_old = is_before(server_minor, Since.COUNTERS_APART)
    counters = {c.get("name", ""): frozenset(c.get("counters") or ()) for c in content.counter_sets}
    return (
        *_name_faults("device", [d.get("name", "") for d in content.devices]),
        *_name_faults("counter set", [c.get("name", "") for c in content.counter_sets]),
        *(fault for c in content.counter_sets for fault in _counter_set_faults(c)),
        *(fault for d in content.devices for fault in _device_faults(d, counters, is_old=is_old)),
    )


def has_blocking_taint(device: DeviceWire) -> bool:
    """Return whether a taint keeps pods away from the device."""
    return any(t.get("effect") in _BLOCKING_EFFECTS for t in device.get("taints") or ())


def _is_shared(device: DeviceWire) -> bool:
    return device.get("allowMultipleAllocations") is True


def _name_faults(noun: str, found: list[str]) -> Iterator[str]:
    for name, times in Counter(found).items():
        if times > 1:
            yield f"{noun} {name!r} occurs {times} times in the pool"
        if not names.is_dns_label(name):
            yield f"{noun} name {name!r} is not a DNS label"


def _counter_set_faults(counter_set: Wire) -> Iterator[str]:
    count = len(counter_set.get("counters") or ())
    if not 1 <= count <= limits.COUNTERS_PER_SET:
        maximum = limits.COUNTERS_PER_SET
        yield f"counter set {counter_set.get('name')!r} has {count} counters, 1 to {maximum} are allowed"


def _device_faults(device: DeviceWire, counters: dict[str, frozenset[str]], *, is_old: bool) -> Iterator[str]:
    name = device.get("name")
    count = len(device.get("attributes") or ()) + len(device.get("capacity") or ())
    if count > limits.DEVICE_ATTRIBUTES_AND_CAPACITIES:
        maximum = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES
        yield f"device {name!r} has {count} attributes and capacities, at most {maximum} are allowed"
    for capacity, wire in (device.get("capacity") or {}).items() if _is_shared(device) else ():
        if "default" not in (wire.get("requestPolicy") or {}):
            yield f"device {name!r} may be allocated many times, but the first claim would take all its {capacity}"
    max_taints = limits.TAINTS_PER_DEVICE_1_34 if is_old else limits.TAINTS_PER_DEVICE
    if len(device.get("taints") or ()) > max_taints:
        yield f"device {name!r} has {len(device['taints'])} taints, at most {max_taints} are allowed"
    consumed = device.get("consumesCounters") or ()
    if not is_old and len(consumed) > limits.COUNTER_CONSUMPTIONS_PER_DEVICE:
        maximum = limits.COUNTER_CONSUMPTIONS_PER_DEVICE
        yield f"device {name!r} consumes from {len(consumed)} counter sets, at most {maximum} are allowed"
    for consumption in consumed:
        known = counters.get(consumption.get("counterSet", ""))
        if known is None:
            yield f"device {name!r} consumes from counter set {consumption.get('counterSet')!r}, which is missing"
        elif missing := sorted(set(consumption.get("counters") or ()) - known):
            yield f"device {name!r} consumes counters that {consumption['counterSet']!r} does not have: {missing}"
