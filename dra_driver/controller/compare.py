"""Compare: whether a stored slice has the content that we want, and which fields differ.

In: specs in wire form. Out: names of differing fields, such as "devices.taints". Pure. Quantities are compared by
value; absent and empty are the same; a taint whose `timeAdded` we left open equals one with any time; fields that we
don't know belong to others and never differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.kubernetes import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_TAINTS,
    LIST_ATTRIBUTES,
    PARTITIONABLE_DEVICES,
)
from dra_driver.model.quantity import Quantity
from dra_driver.model.wire import DeviceWire, Wire

# The fields of resource.k8s.io/v1 up to 1.37 that belong to the publishing driver. Any other field in a stored object
# was put there by a newer server or by another client.
DEVICE_FIELDS = (
    "name",
    "attributes",
    "capacity",
    "consumesCounters",
    "taints",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "bindsToNode",
    "bindingConditions",
    "bindingFailureConditions",
    "allowMultipleAllocations",
)
COUNTER_FIELDS = ("devices.consumesCounters", "sharedCounters")
TAINT_FIELD = "devices.taints"
SHARE_FIELD = "devices.allowMultipleAllocations"

_GATES = {
    "sharedCounters": PARTITIONABLE_DEVICES,
    "devices.consumesCounters": PARTITIONABLE_DEVICES,
    "devices.nodeName": PARTITIONABLE_DEVICES,
    "devices.nodeSelector": PARTITIONABLE_DEVICES,
    "devices.allNodes": PARTITIONABLE_DEVICES,
    "devices.taints": DEVICE_TAINTS,
    "devices.bindsToNode": BINDING_CONDITIONS,
    "devices.bindingConditions": BINDING_CONDITIONS,
    "devices.bindingFailureConditions": BINDING_CONDITIONS,
    "devices.allowMultipleAllocations": CONSUMABLE_CAPACITY,
    "devices.capacity": CONSUMABLE_CAPACITY,
    "devices.attributes": LIST_ATTRIBUTES,
}
_TIME_TOLERANCE_S = 1.0  # the server stores times in whole seconds


def gates_behind(fields: Iterable[str]) -> tuple[str, ...]:
    """Return the feature gates that are probably off if the server dropped these fields."""
    return tuple(sorted({_GATES[f] for f in fields if f in _GATES}))


def differing_fields(wanted: Wire, stored: Wire) -> frozenset[str]:
    """Return the names of the fields of a slice's spec in which `stored` differs from `wanted`.

    "devices" means that the slice contains other devices, or the same ones in another order.
    """
    differing = {key for key in ("driver", "nodeName") if wanted.get(key) != stored.get(key)}
    if wanted.get("pool") != _known_pool(stored):
        differing.add("pool")
    if _counter_sets(wanted) != _counter_sets(stored):
        differing.add("sharedCounters")
    ours, theirs = wanted.get("devices") or [], stored.get("devices") or []
    if [d.get("name") for d in ours] != [d.get("name") for d in theirs]:
        differing.add("devices")
    found = {d.get("name"): d for d in theirs}
    for device in ours:
        if (other := found.get(device.get("name"))) is not None:
            differing |= {f"devices.{name}" for name in _differing_device_fields(device, other)}
    return frozenset(differing)


def _differing_device_fields(wanted: DeviceWire, stored: DeviceWire) -> set[str]:
    if wanted == stored:
        return set()
    differing = {
        name
        for name in DEVICE_FIELDS
        if name != "taints" and _canonical(name, wanted.get(name)) != _canonical(name, stored.get(name))
    }
    if not _same_taints(wanted.get("taints") or [], stored.get("taints") or []):
        differing.add("taints")
    return differing


def _known_pool(spec: Wire) -> Wire:
    pool = spec.get("pool") or {}
    return {key: pool[key] for key in ("name", "generation", "resourceSliceCount") if key in pool}


def _counter_sets(spec: Wire) -> list[Any]:
    return [(c.get("name"), _quantities(c.get("counters"))) for c in spec.get("sharedCounters") or []]


def _canonical(name: str, value: Any) -> Any:
    """Return a field's value in a form that is equal for values that the API treats as equal."""
    if not value:
        return None
    if name == "consumesCounters":
        return [(c.get("counterSet"), _quantities(c.get("counters"))) for c in value]
    if name == "capacity":
        return {key: _capacity(item) for key, item in value.items()}
    return value


def _capacity(capacity: Wire) -> Any:
    return {key: _quantity_tree(item) for key, item in capacity.items() if item}


def _quantities(counters: Mapping[str, Wire] | None) -> dict[str, Any]:
    return {name: _quantity_tree(counter.get("value")) for name, counter in (counters or {}).items()}


def _quantity_tree(value: Any) -> Any:
    """Parse every text below a capacity as a quantity, which all of them are."""
    if isinstance(value, dict):
        return {key: _quantity_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quantity_tree(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return Quantity.parse(value)
    except InputError:
        return value


def taint_key(taint: Wire) -> tuple[str, str, str]:
    """Return what identifies a taint: its key, value and effect."""
    return taint.get("key", ""), taint.get("value") or "", taint.get("effect", "")


def _same_taints(wanted: list[Wire], stored: list[Wire]) -> bool:
    if len(wanted) != len(stored):
        return False
    return all(
        taint_key(ours) == taint_key(theirs) and _same_time(ours.get("timeAdded"), theirs.get("timeAdded"))
        for ours, theirs in zip(wanted, stored, strict=True)
    )


def _same_time(wanted: str | None, stored: str | None) -> bool:
    if wanted is None or wanted == stored:
        return True
    if stored is None:
        return False
    try:
        apart = datetime.fromisoformat(wanted) - datetime.fromisoformat(stored)
    except (ValueError, TypeError):
        return False
    return abs(apart.total_seconds()) <= _TIME_TOLERANCE_S
