"""Pods and nodes: whether a pod may go to a node at all, before devices are considered.

In: a pod and a node as wire dicts. Out: the reason against it in one clause, or "". A selector that fails on a device
blocks the pod only if a node with that device reaches the device check, so this check comes first.

Source: Kubernetes scheduler plugins NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, DynamicResources (its
check of claims that are allocated already), in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.allocation.outcome import AllocatorError
from dra_driver.allocation.pools.held import claim_name
from dra_driver.allocation.pools.node_selector import matches_selector
from dra_driver.model.wire import ClaimWire, Wire

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def unsuitable_reason(pod: Wire, node: Wire, allocated: Sequence[ClaimWire] = ()) -> str:
    """Return why a pod can't go to a node; "" if it can. `allocated` are its claims that hold devices already."""
    wanted, spec = pod.get("spec") or {}, node.get("spec") or {}
    tolerations: Sequence[Wire] = wanted.get("tolerations") or ()
    if spec.get("unschedulable") and not _tolerated(_UNSCHEDULABLE, tolerations):
        return "the node is cordoned"
    name = node["metadata"]["name"]
    if wanted.get("nodeName") not in {None, "", name}:
        return f"the pod is bound to node {wanted['nodeName']}"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, tolerations):
            return f"node taint {taint['key']}:{taint['effect']} is not tolerated"
    labels = node["metadata"].get("labels") or {}
    for key, value in (wanted.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    affinity = ((wanted.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    try:
        if affinity is not None and not matches_selector(affinity, node):
            return "required node affinity does not match"
    except AllocatorError:
        return "required node affinity can't be parsed"
    return _why_not_with(allocated, node)


def _why_not_with(allocated: Sequence[ClaimWire], node: Wire) -> str:
    """Return why the devices that a pod's claims hold already can't be used on a node."""
    for claim in allocated:
        selector = claim["status"]["allocation"].get("nodeSelector")
        try:
            if selector is not None and not matches_selector(selector, node):
                return f"claim {claim_name(claim)} holds devices that this node does not reach"
        except AllocatorError:
            return f"the node selector of claim {claim_name(claim)} can't be parsed"
    return ""


def _tolerated(taint: Wire, tolerations: Sequence[Wire]) -> bool:
    return any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Wire, taint: Wire) -> bool:
    """Return whether a toleration covers a node taint.

    Source: Kubernetes core/v1 Toleration.ToleratesTaint.
    """
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("key") not in {None, "", taint["key"]}:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return (toleration.get("value") or "") == (taint.get("value") or "")
