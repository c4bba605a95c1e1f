"""Allocations: which devices of a pool stand in the allocation of any claim, prepared or not.

In: the claims of the cluster. Out: names of devices, admin access included, and which of them in shares. Asked only
where devices are about to be withdrawn or changed; a scheduler may have handed them out a moment ago.
"""

from __future__ import annotations

from dra_driver.plugin.abandoned import API_SECONDS, CLAIMS_PATH, ClaimApi
from dra_driver.plugin.node import Node


def allocated_names(api: ClaimApi, node: Node) -> frozenset[str]:
    """Name them. Raises: ApiError."""
    return frozenset(name for name, _ in allocated_forms(api, node))


def allocated_forms(api: ClaimApi, node: Node) -> frozenset[tuple[str, bool]]:
    """Name them, each with whether it is (also) allocated in shares. Raises: ApiError."""
    listed = api.request("GET", CLAIMS_PATH, timeout_s=API_SECONDS)
    results = (
        result
        for claim in listed.get("items") or ()
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
    )
    ours = (r for r in results if (r.get("driver"), r.get("pool")) == (node.driver, node.pool))
    return frozenset((r["device"], bool(r.get("shareID"))) for r in ours)
