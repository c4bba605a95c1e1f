"""Device rules: what the API server demands of one device in a ResourceSlice.

In: a device, its slice and the counter sets beside it. Out: faults.
Source: resource.k8s.io/v1 validation of Device, Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_driver.base import errors
from dra_driver.base.quantity import Quantity
from dra_driver.base.versions import Semver, SemverError, Since
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.simulator import value_rules
from dra_driver.simulator.shapes import Faults, RuleContext

_LISTS = ("ints", "bools", "strings", "versions")
_SCALARS = ("int", "bool", "string", "version")
_ATTRIBUTE_VALUES = 48  # scalars and list items in all attributes of a device (1.36 and newer)
_BINDING_CONDITIONS = 4
_VALID_VALUES = 10


def check_device(
    device: DeviceWire,
    path: str,
    spec: Wire,
    context: RuleContext,
    faults: Faults,
) -> None:
    """Collect every fault of one device."""
    value_rules.check_label_name(device.get("name"), f"{path}.name", faults)
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    maximum = errors.DEVICE_ATTRIBUTES_AND_CAPACITIES
    if len(attributes) + len(capacity) > maximum:
        why = f"the total number of attributes and capacities must not exceed {maximum}"
        faults.invalid(path, len(attributes) + len(capacity), why)
    _check_attributes(attributes, f"{path}.attributes", context, faults)
    for name, amount in capacity.items():
        value_rules.check_qualified_name(name, value_rules.of_key(f"{path}.capacity", name, context.minor), faults)
        _check_capacity(amount, device, f"{path}.capacity[{name}]", faults)
    _check_node(device, path, spec, faults)
    _check_consumption(device, path, spec, context, faults)
    _check_taints(device, path, context, faults)
    _check_binding(device, path, faults)


def _check_attributes(attributes: Wire, path: str, context: RuleContext, faults: Faults) -> None:
    values = 0
    for name, attribute in attributes.items():
        value_rules.check_qualified_name(name, value_rules.of_key(path, name, context.minor), faults)
        values += _check_attribute(attribute, f"{path}[{name}]", faults)
    if values > _ATTRIBUTE_VALUES:
        faults.invalid(path, values, f"the total number of values must not exceed {_ATTRIBUTE_VALUES}")


def _check_attribute(attribute: Wire, path: str, faults: Faults) -> int:
    """Check one attribute, and return how many values it holds."""
    given = [name for name in (*_SCALARS, *_LISTS) if name in attribute]
    if len(given) != 1:
        if given:
            faults.invalid(path, attribute, "exactly one value must be specified")
        else:
            faults.required(path, "exactly one value must be specified")
        return 1
    name = given[0]
    values = attribute[name] if name in _LISTS else [attribute[name]]
    if not values:
        faults.required(f"{path}.{name}", "must not be empty")
    for value in values:
        if isinstance(value, str) and len(value.encode()) > errors.ATTRIBUTE_STRING_BYTES:
            faults.too_long(f"{path}.{name}", errors.ATTRIBUTE_STRING_BYTES)
        elif name in ("version", "versions"):
            try:
                Semver.parse(value)
            except SemverError:
                faults.invalid(f"{path}.{name}", value, "must be a string compatible with semver.org spec 2.0.0")
    return len(values)


def _check_capacity(amount: Wire, device: DeviceWire, path: str, faults: Faults) -> None:
    policy = amount.get("requestPolicy")
    if policy is None:
        return
    at = f"{path}.requestPolicy"
    if not device.get("allowMultipleAllocations"):
        faults.forbidden(at, "may only be used with `allowMultipleAllocations`")
        return
    given = [name for name in ("validValues", "validRange") if policy.get(name)]
    if len(given) > 1:
        faults.forbidden(at, "exactly one policy can be specified")
    if given and "default" not in policy:
        faults.required(f"{at}.default", "required when a policy is defined")
        return
    maximum = Quantity.parse(amount["value"])
    default = Quantity.parse(policy["default"]) if "default" in policy else None
    if policy.get("validValues"):
        _check_valid_values(policy["validValues"], default, maximum, f"{at}.validValues", faults)
    if policy.get("validRange"):
        _check_valid_range(policy["validRange"], default, maximum, f"{at}.validRange", faults)


def _check_valid_values(
    texts: list[str], default: Quantity | None, maximum: Quantity, path: str, faults: Faults
) -> None:
    values = [Quantity.parse(text) for text in texts]
    if len(values) > _VALID_VALUES:
        faults.too_many(path, len(values), _VALID_VALUES)
        faults.invalid(path, str(default), "default value is not valid according to the requestPolicy")
        return
    for i, value in enumerate(values):
        if value > maximum:
            faults.invalid(f"{path}[{i}]", texts[i], "must not exceed the capacity value")
        if i and value == values[i - 1]:
            faults.duplicate(f"{path}[{i}]", texts[i])
        elif i and value < values[i - 1]:
            faults.invalid(f"{path}[{i}]", texts[i], "values must be sorted in ascending order")
    if default is not None and default not in values:
        faults.invalid(path, str(default), "default value is not valid according to the requestPolicy")


def _check_valid_range(limit: Wire, default: Quantity | None, maximum: Quantity, path: str, faults: Faults) -> None:
    if "min" not in limit:
        faults.required(f"{path}.min")
        return
    low = Quantity.parse(limit["min"])
    high = Quantity.parse(limit["max"]) if "max" in limit else None
    if low > maximum:
        faults.invalid(f"{path}.min", limit["min"], f"min is larger than capacity value: {maximum}")
    if default is not None and default < low:
        faults.invalid(f"{path}.min", str(default), f"default is less than min: {low}")
    if high is not None:
        if high > maximum:
            faults.invalid(f"{path}.max", limit["max"], f"max is larger than capacity value: {maximum}")
        if low > high:
            faults.invalid(f"{path}.max", limit["min"], f"min is larger than max: {high}")
        if default is not None and default > high:
            faults.invalid(f"{path}.max", str(default), f"default is more than max: {high}")
    if "step" in limit:
        _check_step(limit, (default, high), maximum, f"{path}.step", faults)


def _check_step(
    limit: Wire, on_steps: tuple[Quantity | None, ...], maximum: Quantity, path: str, faults: Faults
) -> None:
    """Check the step of a range. A real server divides by a step of 0 and closes the connection; here 0 is refused."""
    low, step = int(Quantity.parse(limit["min"]).value), int(Quantity.parse(limit["step"]).value)
    if step <= 0:
        faults.invalid(path, limit["step"], "must be greater than zero")
        return
    if low + step > int(maximum.value):
        faults.invalid(path, limit["step"], "one step above min is larger than the capacity value")
    for value in on_steps:
        if value is not None and (int(value.value) - low) % step:
            why = f"value is not a multiple of a given step ({limit['step']}) from ({limit['min']})"
            faults.invalid(path, str(value), why)


def _check_node(device: DeviceWire, path: str, spec: Wire, faults: Faults) -> None:
    names = ("nodeName", "nodeSelector", "allNodes")
    given = [name for name in names if name in device and device[name] not in ("", False)]
    if not spec.get("perDeviceNodeSelection"):
        if given:
            faults.invalid(
                path, "null", "a node can only be set if `perDeviceNodeSelection` is set to true in the spec"
            )
        return
    if len(given) != 1:
        faults.required(path, "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required")
    if device.get("nodeName") == "":
        faults.invalid(f"{path}.nodeName", "", "must not be empty")
    elif "nodeName" in device:
        value_rules.check_subdomain(device["nodeName"], f"{path}.nodeName", faults)
    if "nodeSelector" in device:
        value_rules.check_node_selector(device["nodeSelector"], f"{path}.nodeSelector", faults)
    if device.get("allNodes") is False:
        faults.invalid(f"{path}.allNodes", value=False, why="must be either unset or set to true")


def _check_consumption(device: DeviceWire, path: str, spec: Wire, context: RuleContext, faults: Faults) -> None:
    entries: list[Wire] = device.get("consumesCounters") or []
    is_old = context.minor < Since.COUNTERS_APART
    sets: Mapping[Any, Wire] = {s.get("name"): s.get("counters") or {} for s in spec.get("sharedCounters") or []}
    if not is_old and len(entries) > errors.COUNTER_CONSUMPTIONS_PER_DEVICE:
        faults.too_many(f"{path}.consumesCounters", len(entries), errors.COUNTER_CONSUMPTIONS_PER_DEVICE)
    total = sum(len(entry.get("counters") or {}) for entry in entries)
    if is_old and total > errors.COUNTERS_PER_SET:
        faults.too_many(f"{path}.consumesCounters", total, errors.COUNTERS_PER_SET)
    seen: set[Any] = set()
    for i, entry in enumerate(entries):
        at = f"{path}.consumesCounters[{i}]"
        name, counters = entry.get("counterSet"), entry.get("counters") or {}
        value_rules.check_label_name(name, f"{at}.counterSet", faults)
        if name in seen:
            faults.duplicate(at, name)
        seen.add(name)
        _check_counters(counters, f"{at}.counters", context, faults)
        if is_old and name not in sets:
            faults.invalid(
                f"{at}.counterSet", name, "must reference a counterSet defined in the ResourceSlice sharedCounters"
            )
        elif is_old:
            for counter in sorted(counters.keys() - sets[name].keys()):
                faults.invalid(f"{at}.counters", counter, f"must reference a counter defined in the counter set {name}")


def _check_counters(counters: Wire, path: str, context: RuleContext, faults: Faults) -> None:
    if not counters:
        faults.required(path)
    if context.minor >= Since.COUNTERS_APART and len(counters) > errors.COUNTERS_PER_SET:
        faults.too_many(path, len(counters), errors.COUNTERS_PER_SET)
    for counter in counters:
        value_rules.check_label_name(counter, value_rules.of_key(path, counter, context.minor), faults)


def _check_taints(device: DeviceWire, path: str, context: RuleContext, faults: Faults) -> None:
    taints: list[Wire] = device.get("taints") or []
    is_old = context.minor < Since.INFORMING_TAINTS
    maximum = errors.TAINTS_PER_DEVICE_1_34 if is_old else errors.TAINTS_PER_DEVICE
    effects = ("NoExecute", "NoSchedule") if is_old else ("NoExecute", "NoSchedule", "None")
    if len(taints) > maximum:
        faults.too_many(f"{path}.taints", len(taints), maximum)
    for i, taint in enumerate(taints):
        at = f"{path}.taints[{i}]"
        value_rules.check_label_key(taint.get("key", ""), f"{at}.key", faults)
        value_rules.check_label_value(taint.get("value", ""), f"{at}.value", faults)
        if not taint.get("effect"):
            faults.required(f"{at}.effect")
        elif taint["effect"] not in effects:
            faults.unsupported(f"{at}.effect", taint["effect"], effects)


def _check_binding(device: DeviceWire, path: str, faults: Faults) -> None:
    ready, failed = device.get("bindingConditions") or [], device.get("bindingFailureConditions") or []
    if ready and not failed:
        faults.invalid(f"{path}.bindingFailureConditions", "null", "are required to use bindingConditions")
    if failed and not ready:
        faults.invalid(f"{path}.bindingConditions", "null", "are required to use bindingFailureConditions")
    for name, conditions in (("bindingConditions", ready), ("bindingFailureConditions", failed)):
        if len(conditions) > _BINDING_CONDITIONS:
            faults.too_many(f"{path}.{name}", len(conditions), _BINDING_CONDITIONS)
        for i, condition in enumerate(conditions):
            value_rules.check_label_key(condition, f"{path}.{name}[{i}]", faults)
    for i, condition in enumerate(failed):
        if condition in ready:
            faults.invalid(
                f"{path}.bindingFailureConditions[{i}]", condition, "must not overlap with bindingConditions"
            )
