"""Claim rules: what the API server changes in and demands of a ResourceClaim's spec, a template and a DeviceClass.

In: the object. Out: defaults filled in, fields of switched-off gates removed, and every fault at once.
Source: resource.k8s.io/v1 validation and strategies, Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import uuid
from collections.abc import Iterator
from typing import Any

from dra_driver.base import errors
from dra_driver.base.versions import (
    ADMIN_ACCESS,
    CONSUMABLE_CAPACITY,
    DEVICE_STATUS,
    DEVICE_TAINTS,
    EXTENDED_RESOURCE,
    PRIORITIZED_LIST,
)
from dra_driver.base.wire import Wire
from dra_driver.simulator import shapes, value_rules
from dra_driver.simulator.shapes import Faults, KindRules, RuleContext
from dra_driver.simulator.value_rules import LIST_ENTRIES

# Patching

DeviceKey = tuple[str, str, str, str]


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch.

    >>> merge_patch({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def device_key(entry: Wire) -> DeviceKey:
    """Return the list-map key of an entry of status.devices."""
    return entry.get("driver", ""), entry.get("pool", ""), entry.get("device", ""), entry.get("shareID", "")


def apply_status(stored: Wire, applied: Wire, owned: frozenset[DeviceKey]) -> tuple[Wire, frozenset[DeviceKey]]:
    """Apply a status: each entry of status.devices belongs to one field manager, and everything else is merged.

    `owned` are the entries that this field manager has applied before; those that it now leaves out are removed. Return
    the new object and the entries that the manager now owns.
    """
    status = dict(applied.get("status") or {})
    entries = status.pop("devices", None) or []
    result: Wire = merge_patch(stored, {"status": status})
    mine = {device_key(e): copy.deepcopy(e) for e in entries}
    kept = []
    for entry in (stored.get("status") or {}).get("devices") or []:
        key = device_key(entry)
        if key in mine:
            kept.append(mine.pop(key))
        elif key not in owned:
            kept.append(copy.deepcopy(entry))
    result["status"] = {**result.get("status", {}), "devices": [*kept, *mine.values()]}
    if not result["status"]["devices"]:
        del result["status"]["devices"]
    return result, frozenset(device_key(e) for e in entries)


# Claim status rules: allocation, reservations and device status of a ResourceClaim.

_RESERVED_FOR = 256
_ALLOCATION_CONFIGS = 64
_CONDITIONS = 8
_STATUSES = ("False", "True", "Unknown")
_IPS = 16
_INTERFACE_NAME = 256
_HARDWARE_ADDRESS = 128


def prepare_status(new: Wire, old: Wire, context: RuleContext) -> None:
    """Drop the fields of switched-off gates, and the device status if there is no allocation."""
    status = new.get("status")
    if not status:
        return
    if CONSUMABLE_CAPACITY not in context.gates:
        for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or []:
            result.pop("shareID", None)
            result.pop("consumedCapacity", None)
    was_used = "devices" in (old.get("status") or {})
    if "allocation" not in status or (DEVICE_STATUS not in context.gates and not was_used):
        status.pop("devices", None)


def check_status(new: Wire, old: Wire, context: RuleContext, faults: Faults) -> None:  # noqa: ARG001
    """Collect every fault of a claim's new status."""
    status, before = new.get("status") or {}, old.get("status") or {}
    allocation, was = status.get("allocation"), before.get("allocation")
    if allocation is not None and was is not None and allocation != was:
        faults.invalid("status.allocation", "<value omitted>", "field is immutable")
    elif allocation is not None and was is None:
        if old["metadata"].get("deletionTimestamp"):
            faults.forbidden("status.allocation", "a claim may not be allocated while it is being deleted")
        _check_allocation(allocation, new.get("spec") or {}, faults)
    _check_reserved_for(status.get("reservedFor") or [], allocation, before, old, faults)
    _check_devices(status.get("devices") or [], allocation or {}, faults)


def _request_names(spec: Wire) -> set[str]:
    names = set()
    for request in (spec.get("devices") or {}).get("requests") or []:
        subs = [f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable") or []]
        names |= set(subs) or {request["name"]}
    return names


def _check_allocation(allocation: Wire, spec: Wire, faults: Faults) -> None:
    devices = allocation.get("devices") or {}
    results: list[Wire] = devices.get("results") or []
    configs: list[Wire] = devices.get("config") or []
    at = "status.allocation.devices"
    if len(results) > errors.ALLOCATION_RESULTS:
        faults.too_many(f"{at}.results", len(results), errors.ALLOCATION_RESULTS)
    names = _request_names(spec)
    for i, result in enumerate(results):
        path = f"{at}.results[{i}]"
        if result.get("request") not in names:
            faults.invalid(f"{path}.request", result.get("request", ""), "must be the name of a request in the claim")
        value_rules.check_driver(result.get("driver"), f"{path}.driver", faults)
        value_rules.check_pool(result.get("pool"), f"{path}.pool", faults)
        value_rules.check_label_name(result.get("device"), f"{path}.device", faults)
        if "shareID" in result and not _is_share_id(result["shareID"]):
            faults.invalid(f"{path}.shareID", result["shareID"], "must be a lower-case UUID")
    if len(configs) > _ALLOCATION_CONFIGS:
        faults.too_many(f"{at}.config", len(configs), _ALLOCATION_CONFIGS)
    base = {name.partition("/")[0] for name in names}
    for i, config in enumerate(configs):
        path = f"{at}.config[{i}]"
        if config.get("source") not in ("FromClass", "FromClaim"):
            faults.unsupported(f"{path}.source", config.get("source", ""), ("FromClaim", "FromClass"))
        for j, name in enumerate(config.get("requests") or []):
            if name not in names | base:
                faults.invalid(f"{path}.requests[{j}]", name, "must be the name of a request in the claim")
        value_rules.check_opaque(config.get("opaque"), f"{path}.opaque", faults)


def _check_reserved_for(entries: list[Wire], allocation: Wire | None, before: Wire, old: Wire, faults: Faults) -> None:
    if entries and allocation is None:
        faults.forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    if len(entries) > _RESERVED_FOR:
        faults.too_many("status.reservedFor", len(entries), _RESERVED_FOR)
    seen: set[Any] = set()
    known = {entry["uid"] for entry in before.get("reservedFor") or []}
    for i, entry in enumerate(entries):
        path = f"status.reservedFor[{i}]"
        for name in ("resource", "name", "uid"):
            if not entry.get(name):
                faults.required(f"{path}.{name}")
        if entry.get("uid") in seen:
            faults.duplicate(path, entry.get("uid"))
        seen.add(entry.get("uid"))
        if old["metadata"].get("deletionTimestamp") and entry.get("uid") not in known:
            faults.forbidden(path, "new entries may not be added while the claim is being deleted")


def _check_devices(entries: list[Wire], allocation: Wire, faults: Faults) -> None:
    results = (allocation.get("devices") or {}).get("results") or []
    allocated = {device_key(result) for result in results}
    seen = set()
    for i, entry in enumerate(entries):
        path = f"status.devices[{i}]"
        key = device_key(entry)
        if key in seen:
            faults.duplicate(path, "/".join(part for part in key if part))
        seen.add(key)
        if key not in allocated:
            faults.invalid(path, "/".join(part for part in key if part), "must be an allocated device in the claim")
        conditions, data = entry.get("conditions") or [], entry.get("data")
        if len(conditions) > _CONDITIONS:
            faults.too_many(f"{path}.conditions", len(conditions), _CONDITIONS)
        for j, condition in enumerate(conditions):
            _check_condition(condition, f"{path}.conditions[{j}]", faults)
        if data is not None and not isinstance(data, dict):
            faults.invalid(f"{path}.data", "<value omitted>", "parsing as JSON object failed")
        elif data and len(json.dumps(data, separators=(",", ":")).encode()) > errors.OPAQUE_PARAMETERS_BYTES:
            faults.too_long(f"{path}.data", errors.OPAQUE_PARAMETERS_BYTES)
        _check_network(entry.get("networkData") or {}, f"{path}.networkData", faults)


def _check_condition(condition: Wire, path: str, faults: Faults) -> None:
    """Check one condition. Source: meta/v1 validation of conditions."""
    for name in ("type", "lastTransitionTime", "reason"):
        if not condition.get(name):
            faults.required(f"{path}.{name}")
    value_rules.check_label_key(condition.get("type", ""), f"{path}.type", faults)
    if condition.get("status") not in _STATUSES:
        faults.unsupported(f"{path}.status", condition.get("status", ""), _STATUSES)


def _check_network(data: Wire, path: str, faults: Faults) -> None:
    if len(data.get("interfaceName", "")) > _INTERFACE_NAME:
        faults.too_long(f"{path}.interfaceName", _INTERFACE_NAME)
    if len(data.get("hardwareAddress", "")) > _HARDWARE_ADDRESS:
        faults.too_long(f"{path}.hardwareAddress", _HARDWARE_ADDRESS)
    addresses = data.get("ips") or []
    if len(addresses) > _IPS:
        faults.too_many(f"{path}.ips", len(addresses), _IPS)
    for i, text in enumerate(addresses):
        try:
            ipaddress.ip_interface(text)
            is_right = "/" in text
        except ValueError:
            is_right = False
        if not is_right:
            faults.invalid(f"{path}.ips[{i}]", text, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24)")


def _is_share_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


_ALTERNATIVES = 8
_ADMIN_LABEL = "resource.kubernetes.io/admin-access"


def _choices(spec: Wire) -> Iterator[Wire]:
    """Yield every `exactly` and every alternative of a claim spec."""
    for request in (spec.get("devices") or {}).get("requests") or []:
        if "exactly" in request:
            yield request["exactly"]
        yield from request.get("firstAvailable") or []


def _prepare_spec(spec: Wire, before: Wire, context: RuleContext) -> None:
    gates = context.gates
    for choice in _choices(spec):
        choice["allocationMode"] = choice.get("allocationMode") or "ExactCount"
        if not choice.get("count"):  # an absent count reads as 0
            choice.pop("count", None)
            if choice["allocationMode"] == "ExactCount":
                choice["count"] = 1
        if ADMIN_ACCESS not in gates and not any(c.get("adminAccess") for c in _choices(before)):
            choice.pop("adminAccess", None)
        if DEVICE_TAINTS not in gates and not any("tolerations" in c for c in _choices(before)):
            choice.pop("tolerations", None)
        if CONSUMABLE_CAPACITY not in gates and not any("capacity" in c for c in _choices(before)):
            choice.pop("capacity", None)
        for toleration in choice.get("tolerations") or []:
            toleration.setdefault("operator", "Equal")
    devices, devices_before = spec.get("devices") or {}, before.get("devices") or {}
    if PRIORITIZED_LIST not in gates and not any("firstAvailable" in r for r in devices_before.get("requests") or []):
        for request in devices.get("requests") or []:
            request.pop("firstAvailable", None)
    if CONSUMABLE_CAPACITY not in gates:
        for constraint in devices.get("constraints") or []:
            constraint.pop("distinctAttribute", None)


def _check_spec(spec: Wire, path: str, namespace: str, context: RuleContext, faults: Faults) -> None:
    devices = spec.get("devices") or {}
    requests: list[Wire] = devices.get("requests") or []
    if len(requests) > LIST_ENTRIES:
        faults.too_many(f"{path}.devices.requests", len(requests), LIST_ENTRIES)
    names: set[str] = set()
    for i, request in enumerate(requests):
        at = f"{path}.devices.requests[{i}]"
        value_rules.check_label_name(request.get("name"), f"{at}.name", faults)
        if request.get("name") in names:
            faults.duplicate(at, request["name"])
        names |= _check_request(request, at, namespace, context, faults)
    for kind, check in (("constraints", _check_constraint), ("config", _check_config)):
        entries: list[Wire] = devices.get(kind) or []
        if len(entries) > LIST_ENTRIES:
            faults.too_many(f"{path}.devices.{kind}", len(entries), LIST_ENTRIES)
        for i, entry in enumerate(entries):
            at = f"{path}.devices.{kind}[{i}]"
            _check_references(entry, at, names, faults)
            check(entry, at, context, faults)


def _check_request(request: Wire, path: str, namespace: str, context: RuleContext, faults: Faults) -> set[str]:
    """Check one request, and return the names by which constraints and configs may refer to it."""
    name = request.get("name", "")
    given = [kind for kind in ("exactly", "firstAvailable") if request.get(kind) not in (None, [])]
    if len(given) != 1:
        faults.required(path, "exactly one of `exactly` or `firstAvailable` is required")
    if "exactly" in request:
        _check_choice(request["exactly"], f"{path}.exactly", context, faults)
        if request["exactly"].get("adminAccess") and context.namespace_labels(namespace).get(_ADMIN_LABEL) != "true":
            why = f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
            faults.forbidden(f"{path}.adminAccess", why)
    alternatives: list[Wire] = request.get("firstAvailable") or []
    if len(alternatives) > _ALTERNATIVES:
        faults.too_many(f"{path}.firstAvailable", len(alternatives), _ALTERNATIVES)
    names = {name}
    for i, alternative in enumerate(alternatives):
        at = f"{path}.firstAvailable[{i}]"
        value_rules.check_label_name(alternative.get("name"), f"{at}.name", faults)
        full = f"{name}/{alternative.get('name', '')}"
        if full in names:
            faults.duplicate(at, alternative.get("name"))
        names.add(full)
        _check_choice(alternative, at, context, faults)
    return names


def _check_choice(choice: Wire, path: str, context: RuleContext, faults: Faults) -> None:
    value_rules.check_subdomain(choice.get("deviceClassName"), f"{path}.deviceClassName", faults)
    value_rules.check_selectors(choice.get("selectors") or [], f"{path}.selectors", context, faults)
    mode, count = choice.get("allocationMode"), choice.get("count", 0)
    if mode == "ExactCount":
        if count <= 0:
            faults.invalid(f"{path}.count", count, "must be greater than zero")
    elif mode == "All":
        if count:
            faults.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    else:
        faults.unsupported(f"{path}.allocationMode", mode, ("All", "ExactCount"))
    value_rules.check_tolerations(choice.get("tolerations") or [], f"{path}.tolerations", faults)


def _check_references(entry: Wire, path: str, names: set[str], faults: Faults) -> None:
    requests: list[str] = entry.get("requests") or []
    if len(requests) > LIST_ENTRIES:
        faults.too_many(f"{path}.requests", len(requests), LIST_ENTRIES)
    for i, name in enumerate(requests):
        if name in requests[:i]:
            faults.duplicate(f"{path}.requests[{i}]", name)
        if name not in names:
            faults.invalid(f"{path}.requests[{i}]", name, "must be the name of a request in the claim")


def _check_constraint(constraint: Wire, path: str, context: RuleContext, faults: Faults) -> None:
    given = [name for name in ("matchAttribute", "distinctAttribute") if name in constraint]
    if not given and CONSUMABLE_CAPACITY in context.gates:
        faults.required(path, "exactly one of `matchAttribute` or `distinctAttribute` is required")
    elif not given:
        faults.required(f"{path}.matchAttribute")
    for name in given:
        value_rules.check_qualified_name(constraint[name], f"{path}.{name}", faults, needs_domain=True)


def _check_config(config: Wire, path: str, _: RuleContext, faults: Faults) -> None:
    value_rules.check_opaque(config.get("opaque"), f"{path}.opaque", faults)


def _prepare_claim(new: Wire, old: Wire | None, context: RuleContext) -> None:
    if old is None:
        _prepare_spec(new.get("spec") or {}, {}, context)
        return
    _prepare_spec(new.get("spec") or {}, old.get("spec") or {}, context)
    prepare_status(new, old, context)


def _check_claim(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    if old is not None:
        _check_unchanged(new, old, faults)
    else:
        _check_spec(new.get("spec") or {}, "spec", new["metadata"].get("namespace", ""), context, faults)


def _finish_claim(wire: Wire) -> None:
    for entry in wire.setdefault("status", {}).get("devices") or []:
        entry.setdefault("conditions", None)
    wire["spec"].setdefault("devices", {}).setdefault("requests", None)


def _finish_template(wire: Wire) -> None:
    wire["spec"].setdefault("spec", {}).setdefault("devices", {}).setdefault("requests", None)


def _prepare_template(new: Wire, old: Wire | None, context: RuleContext) -> None:
    before = ((old or {}).get("spec") or {}).get("spec") or {}
    _prepare_spec((new.get("spec") or {}).get("spec") or {}, before, context)


def _check_template(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    if old is not None:
        _check_unchanged(new, old, faults)
    else:
        spec = (new.get("spec") or {}).get("spec") or {}
        _check_spec(spec, "spec.spec", new["metadata"].get("namespace", ""), context, faults)


def _check_unchanged(new: Wire, old: Wire, faults: Faults) -> None:
    if new.get("spec") != old.get("spec"):
        faults.invalid("spec", "<value omitted>", "field is immutable")


def _prepare_class(new: Wire, old: Wire | None, context: RuleContext) -> None:
    spec: Wire = new.setdefault("spec", {})
    used = "extendedResourceName" in ((old or {}).get("spec") or {})
    if EXTENDED_RESOURCE not in context.gates and not used:
        spec.pop("extendedResourceName", None)


def _check_class(new: Wire, old: Wire | None, context: RuleContext, faults: Faults) -> None:
    spec, before = new["spec"], (old or {}).get("spec") or {}
    selectors = spec.get("selectors") or []
    if selectors != before.get("selectors"):
        value_rules.check_selectors(selectors, "spec.selectors", context, faults)
    configs: list[Wire] = spec.get("config") or []
    if len(configs) > LIST_ENTRIES:
        faults.too_many("spec.config", len(configs), LIST_ENTRIES)
    for i, config in enumerate(configs):
        value_rules.check_opaque(config.get("opaque"), f"spec.config[{i}].opaque", faults)
    name: Any = spec.get("extendedResourceName")
    if name is not None:
        domain = name.partition("/")[0]
        if "/" not in name or domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
            faults.invalid("spec.extendedResourceName", name, "must be an extended resource name")
        else:
            value_rules.check_label_key(name, "spec.extendedResourceName", faults)


CLAIM_RULES = KindRules(
    shape=shapes.CLAIM,
    prepare=_prepare_claim,
    check=_check_claim,
    check_status=check_status,
    finish=_finish_claim,
)
TEMPLATE_RULES = KindRules(
    shape=shapes.TEMPLATE, prepare=_prepare_template, check=_check_template, finish=_finish_template
)
CLASS_RULES = KindRules(shape=shapes.CLASS, prepare=_prepare_class, check=_check_class)
