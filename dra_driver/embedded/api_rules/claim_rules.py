"""Claim rules: what the API server changes in and demands of a ResourceClaim's spec, a template and a DeviceClass.

In: the object. Out: defaults filled in, fields of switched-off gates removed, and every fault at once. The status of a
claim is checked in `claim_status_rules`. Source: resource.k8s.io/v1 validation and strategies, Kubernetes 1.34 to 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_driver.embedded.api_rules import claim_status_rules, shapes, value_rules
from dra_driver.embedded.api_rules.rules import Faults, KindRules, RuleContext
from dra_driver.embedded.api_rules.value_rules import LIST_ENTRIES
from dra_driver.model.kubernetes import (
    ADMIN_ACCESS,
    CONSUMABLE_CAPACITY,
    DEVICE_TAINTS,
    EXTENDED_RESOURCE,
    PRIORITIZED_LIST,
)
from dra_driver.model.wire import Wire

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
    claim_status_rules.prepare_status(new, old, context)


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
    check_status=claim_status_rules.check_status,
    finish=_finish_claim,
)
TEMPLATE_RULES = KindRules(
    shape=shapes.TEMPLATE, prepare=_prepare_template, check=_check_template, finish=_finish_template
)
CLASS_RULES = KindRules(shape=shapes.CLASS, prepare=_prepare_class, check=_check_class)
