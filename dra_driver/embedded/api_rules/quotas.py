"""Quotas: ResourceQuotas on the devices of a class, as the API server's admission counts them.

In: quotas, the existing claims, and one more claim. Out: why that claim is refused, or "". Pure.
Source: Kubernetes quota evaluator of resourceclaims: `<class>.deviceclass.resource.k8s.io/devices`; `All` counts as the
32 devices that a claim may hold, firstAvailable as the most that it could get of each class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dra_driver.model.wire import ClaimWire, Wire

KIND = "ResourceQuota"
_ENDING = ".deviceclass.resource.k8s.io/devices"
_ALL = 32


def refusal(quotas: Iterable[Wire], claims: Iterable[ClaimWire], claim: ClaimWire) -> str:
    """Return the API server's message about the first quota that a claim would exceed; "" if there is none."""
    used: Counter[str] = Counter()
    for one in claims:
        used += devices_by_class(one)
    wanted = devices_by_class(claim)
    for quota in quotas:
        for key, limit in (quota["spec"].get("hard") or {}).items():
            name = key.removesuffix(_ENDING)
            if name != key and wanted[name] and used[name] + wanted[name] > int(limit):
                counts = f"requested: {key}={wanted[name]}, used: {key}={used[name]}, limited: {key}={limit}"
                return f"exceeded quota: {quota['metadata']['name']}, {counts}"
    return ""


def devices_by_class(claim: ClaimWire) -> Counter[str]:
    """Return the largest number of devices of each class that a claim may take."""
    found: Counter[str] = Counter()
    for request in claim["spec"]["devices"].get("requests") or ():
        if "exactly" in request:
            found[request["exactly"]["deviceClassName"]] += _count(request["exactly"])
        most: dict[str, int] = {}
        for one in request.get("firstAvailable") or ():
            most[one["deviceClassName"]] = max(_count(one), most.get(one["deviceClassName"], 0))
        found.update(most)
    return found


def _count(request: Wire) -> int:
    return _ALL if request.get("allocationMode") == "All" else int(request.get("count", 1))
