"""Slice rules: what the API server changes in and demands of a ResourceSlice; `device_rules` checks its devices.

In: a ResourceSlice. Out: fields of switched-off gates removed, the time added to taints, and every fault at once.
Source: resource.k8s.io/v1 validation and strategy of ResourceSlice, Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dra_driver.embedded.api_rules import shapes, value_rules
from dra_driver.embedded.api_rules.device_rules import check_device
from dra_driver.embedded.api_rules.rules import Faults, KindRules, RuleContext
from dra_driver.model import limits
from dra_driver.model.kubernetes import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_STATUS,
    DEVICE_TAINTS,
    LIST_ATTRIBUTES,
    PARTITIONABLE_DEVICES,
    Since,
    knows_gate,
)
from dra_driver.model.wire import Wire

_LISTS = ("ints", "bools", "strings", "versions")
_COUNTERS_CONSUMED_PER_SLICE = 1024  # only on 1.34


def prepare(new: Wire, old: Wire | None, context: RuleContext) -> None:
    """Drop the fields of switched-off gates unless the stored slice uses them, and add the time to new taints."""
    spec, before = new.get("spec") or {}, (old or {}).get("spec") or {}
    gates = context.gates
    if DEVICE_TAINTS not in gates and not _any_device(before, ("taints",)):
        _drop_of_devices(spec, ("taints",))
    partitionable = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")
    if PARTITIONABLE_DEVICES not in gates and not (
        _any_device(before, partitionable) or before.keys() & {"sharedCounters", "perDeviceNodeSelection"}
    ):
        _drop_of_devices(spec, partitionable)
        _drop(spec, ("sharedCounters", "perDeviceNodeSelection"))
    binding = ("bindsToNode", "bindingConditions", "bindingFailureConditions")
    if not {BINDING_CONDITIONS, DEVICE_STATUS} <= gates and not _any_device(before, binding):
        _drop_of_devices(spec, binding)
    if CONSUMABLE_CAPACITY not in gates and not _uses_policies(before):
        _drop_of_devices(spec, ("allowMultipleAllocations",))
        for device in spec.get("devices") or []:
            _drop_each((device.get("capacity") or {}).values(), ("requestPolicy",))
    if LIST_ATTRIBUTES not in gates and not _uses_lists(before):
        for device in spec.get("devices") or []:
            _drop_each((device.get("attributes") or {}).values(), _LISTS)
    for device in spec.get("devices") or []:
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", context.now)
    for amount in _amounts(spec):
        amount.setdefault("value", "0")


def _amounts(spec: Wire) -> Iterator[Wire]:
    """Yield every object with a quantity under `value`, which counts as 0 if it is absent."""
    for device in spec.get("devices") or []:
        yield from (device.get("capacity") or {}).values()
        for entry in device.get("consumesCounters") or []:
            yield from (entry.get("counters") or {}).values()
    for counter_set in spec.get("sharedCounters") or []:
        yield from (counter_set.get("counters") or {}).values()


def _any_device(spec: Wire, names: tuple[str, ...]) -> bool:
    return any(device.keys() & set(names) for device in spec.get("devices") or [])


def _uses_policies(spec: Wire) -> bool:
    capacities = (c for device in spec.get("devices") or [] for c in (device.get("capacity") or {}).values())
    return _any_device(spec, ("allowMultipleAllocations",)) or any("requestPolicy" in c for c in capacities)


def _uses_lists(spec: Wire) -> bool:
    attributes = (a for device in spec.get("devices") or [] for a in (device.get("attributes") or {}).values())
    return any(a.keys() & set(_LISTS) for a in attributes)


def _drop(wire: Wire, names: tuple[str, ...]) -> None:
    for name in names:
        wire.pop(name, None)


def _drop_each(wires: Iterable[Wire], names: tuple[str, ...]) -> None:
    for wire in wires:
        _drop(wire, names)


def _drop_of_devices(spec: Wire, names: tuple[str, ...]) -> None:
    _drop_each(spec.get("devices") or [], names)


def check(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    """Collect every fault of a slice, and every change of an immutable field."""
    spec = new.get("spec") or {}
    value_rules.check_driver(spec.get("driver"), "spec.driver", faults)
    _check_pool(spec.get("pool") or {}, faults)
    _check_node_choice(spec, faults)
    _check_devices(spec, context, faults)
    _check_counters(spec, context, faults)
    if old is not None:
        was = old["spec"]
        for path, now, then in (
            ("spec.driver", spec.get("driver"), was["driver"]),
            ("spec.pool.name", (spec.get("pool") or {}).get("name"), was["pool"]["name"]),
            ("spec.nodeName", spec.get("nodeName"), was.get("nodeName")),
        ):
            if now != then:
                faults.invalid(path, now or "", "field is immutable")


def _check_pool(pool: Wire, faults: Faults) -> None:
    value_rules.check_pool(pool.get("name"), "spec.pool.name", faults)
    if pool.get("resourceSliceCount", 0) <= 0:
        faults.invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
    if pool.get("generation", 0) < 0:
        faults.invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero")


def _check_node_choice(spec: Wire, faults: Faults) -> None:
    names = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    given = [name for name in names if name in spec and spec[name] not in ("", False)]
    if spec.get("nodeName") == "":
        faults.invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    elif "nodeName" in spec:
        value_rules.check_subdomain(spec["nodeName"], "spec.nodeName", faults)
    for name in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(name) is False:
            faults.invalid(f"spec.{name}", value=False, why="must be either unset or set to true")
    if "nodeSelector" in spec:
        value_rules.check_node_selector(spec["nodeSelector"], "spec.nodeSelector", faults)
    if not given:
        faults.required("spec", f"exactly one of {', '.join(f'`{n}`' for n in names)} is required")
    elif len(given) > 1:
        shown = "{" + ", ".join(f"`{name}`" for name in given) + "}"
        faults.invalid("spec", shown, f"exactly one of {', '.join(f'`{n}`' for n in names)} is required")


def _check_devices(spec: Wire, context: RuleContext, faults: Faults) -> None:
    devices = spec.get("devices") or []
    maximum = limits.SLICE_DEVICES
    uses_lists = knows_gate(context.minor, LIST_ATTRIBUTES) and _uses_lists(spec)
    is_advanced = _any_device(spec, ("taints", "consumesCounters")) or uses_lists
    if context.minor >= Since.ADVANCED_DEVICES and is_advanced:
        maximum = limits.SLICE_DEVICES_ADVANCED
    if len(devices) > maximum:
        faults.too_many("spec.devices", len(devices), maximum)
    seen: set[str] = set()
    for i, device in enumerate(devices):
        check_device(device, f"spec.devices[{i}]", spec, context, faults)
        name = device.get("name", "")
        if name in seen:
            faults.duplicate(f"spec.devices[{i}]", name)
        seen.add(name)


def _check_counters(spec: Wire, context: RuleContext, faults: Faults) -> None:
    is_apart = context.minor >= Since.COUNTERS_APART
    if is_apart and "sharedCounters" in spec and "devices" in spec:
        faults.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    sets: list[Wire] = spec.get("sharedCounters") or []
    if is_apart and len(sets) > limits.COUNTER_SETS_PER_SLICE:
        faults.too_many("spec.sharedCounters", len(sets), limits.COUNTER_SETS_PER_SLICE)
    seen: set[Any] = set()
    for i, counter_set in enumerate(sets):
        at, name = f"spec.sharedCounters[{i}]", counter_set.get("name")
        value_rules.check_label_name(name, f"{at}.name", faults)
        if name in seen:
            faults.duplicate(at, name)
        seen.add(name)
        _check_counter_names(counter_set.get("counters") or {}, f"{at}.counters", context, faults)
    if not is_apart:
        _check_totals(spec, sets, faults)


def _check_counter_names(counters: Wire, at: str, context: RuleContext, faults: Faults) -> None:
    if not counters:
        faults.required(at)
    if context.minor >= Since.COUNTERS_APART and len(counters) > limits.COUNTERS_PER_SET:
        faults.too_many(at, len(counters), limits.COUNTERS_PER_SET)
    for name in counters:
        value_rules.check_label_name(name, value_rules.of_key(at, name, context.minor), faults)


def _check_totals(spec: Wire, sets: list[Wire], faults: Faults) -> None:
    """Check the limits of servers before 1.35, which count over a whole slice."""
    maximum = limits.COUNTERS_PER_SLICE_1_34
    total = sum(len(one.get("counters") or {}) for one in sets)
    if total > maximum:
        faults.invalid("spec.sharedCounters", total, f"the total number of counters must not exceed {maximum}")
    maximum = _COUNTERS_CONSUMED_PER_SLICE
    taken = [one for device in spec.get("devices") or [] for one in device.get("consumesCounters") or []]
    consumed = sum(len(one.get("counters") or {}) for one in taken)
    if consumed > maximum:
        faults.invalid("spec.devices", consumed, f"the total number of consumed counters must not exceed {maximum}")


RULES = KindRules(shape=shapes.SLICE, prepare=prepare, check=check)
