"""Fields of resource.k8s.io objects that an API server keeps only with alpha gates of Kubernetes 1.36 and 1.37.

In: the fields that the embedded API serves. Out: these and the newer fields, which real objects may have.
Source: Kubernetes API resource/v1, 1.36 and 1.37.
"""

from __future__ import annotations

from typing import Any

from dra_driver.embedded.api_rules import shapes
from dra_driver.embedded.api_rules.shape import QUANTITY, Map

_OVERHEAD = {"perPod": QUANTITY, "perContainer": QUANTITY}
_MAPPING = {"capacityKey": str, "capacityMultiplier": QUANTITY, "deviceMultiplier": QUANTITY}
_DEVICE = {
    "nodeAllocatableResources": Map({"mapping": _MAPPING, "overhead": _OVERHEAD}),
    "nodeAllocatableResourceMappings": Map({"capacityKey": str, "allocationMultiplier": QUANTITY}),  # 1.36
    "consumesCounters": [{"compatibilityGroups": [str]}],
}
_SLICE = {"spec": {"partitionTypeAttribute": str, "skipNodeOperations": [str], "devices": [_DEVICE]}}
_WISH = {"derivedAttributes": [{"name": str, "expression": str}]}
_CLAIM_SPEC = {"devices": {"requests": [{"exactly": _WISH, "firstAvailable": [_WISH]}]}}
_CLAIM_STATUS = {"allocation": {"devices": {"results": [{"skipNodeOperations": [str]}]}}}


def _with(known: Any, more: Any) -> Any:
    """Return `known` with the fields of `more` added at any depth."""
    if isinstance(known, dict):
        return known | {name: _with(known[name], one) if name in known else one for name, one in more.items()}
    return [_with(known[0], more[0])]


CLAIM = _with(shapes.CLAIM, {"spec": _CLAIM_SPEC, "status": _CLAIM_STATUS})
TEMPLATE = _with(shapes.TEMPLATE, {"spec": {"spec": _CLAIM_SPEC}})
SLICE = _with(shapes.SLICE, _SLICE)
