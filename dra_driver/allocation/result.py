"""Results: the AllocationResults of a successful search, as the scheduler writes them.

In: placed devices. Out: one AllocationResult per claim, as a wire dict. Share IDs are derived from the claim's UID and
the position of the device in it, so equal inputs give equal results.

Source: Kubernetes structured allocator, the second half of Allocate: results in search order, class configs before
claim configs, and the node selector of all used devices.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.allocation.pools.node_selector import merge_selectors, only_node
from dra_driver.allocation.requests import Alternative, ClaimPlan
from dra_driver.allocation.rules import AllocatorRules
from dra_driver.allocation.search.attempt import PlacedDevice
from dra_driver.allocation.search.context import Context
from dra_driver.model.wire import Wire

_SHARES = uuid.UUID("6b1f3b1e-6a35-5c0b-8a52-0a3f4f3a6f0e")

Chosen = Mapping[tuple[int, int], int]


def allocation_result(context: Context, index: int, placed: Sequence[PlacedDevice], chosen: Chosen, node: Wire) -> Wire:
    """Return the AllocationResult of one claim."""
    claim = context.plan.claims[index]
    devices: Wire = {}
    if placed:
        devices["results"] = [_device(context, claim, number, one) for number, one in enumerate(placed)]
    picked = [request.alternatives[chosen.get((index, n), 0)] for n, request in enumerate(claim.requests)]
    config = _configs(claim, picked, merges=context.rules.merges_claim_configs)
    if config:
        devices["config"] = config
    result: Wire = {"devices": devices}
    selector = _node_selector(placed, node["metadata"]["name"], context.rules)
    if selector is not None:
        result["nodeSelector"] = selector
    return result


def _device(context: Context, claim: ClaimPlan, number: int, placed: PlacedDevice) -> Wire:
    driver, pool, name = placed.device.id
    alternative = placed.alternative
    written: Wire = {"request": alternative.full_name, "driver": driver, "pool": pool, "device": name}
    if alternative.is_admin:
        written["adminAccess"] = True
    if context.rules.copies_tolerations and alternative.tolerations:
        written["tolerations"] = list(alternative.tolerations)
    if context.features.binding_conditions and context.rules.shares:
        for key in ("bindingConditions", "bindingFailureConditions"):
            if placed.device.wire.get(key):
                written[key] = placed.device.wire[key]
    if placed.is_share:
        seed = f"{claim.wire['metadata'].get('uid') or claim.name}/{number}/{'/'.join(placed.device.id)}"
        written["shareID"] = str(uuid.uuid5(_SHARES, seed))
        if placed.needs:
            written["consumedCapacity"] = {name: str(one.quantity) for name, one in sorted(placed.needs.items())}
    return written


def _configs(claim: ClaimPlan, picked: Sequence[Alternative], *, merges: bool) -> list[Wire]:
    """Return the configs of each class once, then those of the claim, once for every request that they name."""
    configs = _class_configs(picked)
    for config in ((claim.wire.get("spec") or {}).get("devices") or {}).get("config") or ():
        wanted: Sequence[str] = config.get("requests") or ()
        entry: dict[str, Any] = {"source": "FromClaim", **_opaque(config)}
        if not wanted:
            configs.append(entry)
            continue
        times = sum(a.request_name in wanted or a.full_name in wanted for a in picked)
        entry = {"source": "FromClaim", "requests": list(wanted), **_opaque(config)}
        configs += [entry] * (min(times, 1) if merges else times)
    if merges:
        for entry in configs:
            wanted = entry.get("requests") or ()
            if wanted and all(a.request_name in wanted or a.full_name in wanted for a in picked):
                del entry["requests"]
    return configs


def _class_configs(picked: Sequence[Alternative]) -> list[Wire]:
    """Return the configs of each class once, with the names of all requests for devices of the class."""
    configs: list[Wire] = []
    by_class: dict[str, list[list[str]]] = {}
    for alternative in picked:
        name = alternative.device_class["metadata"]["name"]
        if name in by_class:
            for requests in by_class[name]:
                requests.append(alternative.full_name)
            continue
        by_class[name] = []
        for config in (alternative.device_class.get("spec") or {}).get("config") or ():
            requests = [alternative.full_name]
            by_class[name].append(requests)
            configs.append({"source": "FromClass", "requests": requests, **_opaque(config)})
    return configs


def _opaque(config: Wire) -> Wire:
    return {key: value for key, value in config.items() if key != "requests"}


def _node_selector(placed: Sequence[PlacedDevice], node: str, rules: AllocatorRules) -> Wire | None:
    selectors: list[Wire] = []
    for one in placed:
        scope = one.device.node_scope
        if scope.get("nodeName") is not None or (rules.shares and one.device.wire.get("bindsToNode")):
            merge_selectors(selectors)  # a selector that was read before the name may be one that can't be joined
            return only_node(node)
        if scope.get("nodeSelector") is not None:
            selectors.append(scope["nodeSelector"])
    return merge_selectors(selectors) if selectors else None
