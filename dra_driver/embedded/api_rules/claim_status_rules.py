"""Claim status rules: allocation, reservations and device status of a ResourceClaim.

In: the stored claim and the new one. Out: faults. An allocation is set or cleared as a whole, never changed.
Source: resource.k8s.io/v1 validation of ResourceClaimStatus, Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

import ipaddress
import json
import uuid
from typing import Any

from dra_driver.embedded.api_rules import value_rules
from dra_driver.embedded.api_rules.patching import device_key
from dra_driver.embedded.api_rules.rules import Faults, RuleContext
from dra_driver.model import limits
from dra_driver.model.kubernetes import CONSUMABLE_CAPACITY, DEVICE_STATUS
from dra_driver.model.wire import Wire

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
    if len(results) > limits.ALLOCATION_RESULTS:
        faults.too_many(f"{at}.results", len(results), limits.ALLOCATION_RESULTS)
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
        elif data and len(json.dumps(data, separators=(",", ":")).encode()) > limits.OPAQUE_PARAMETERS_BYTES:
            faults.too_long(f"{path}.data", limits.OPAQUE_PARAMETERS_BYTES)
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
