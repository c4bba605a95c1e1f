"""Pod claims: the claim to which an entry of a pod's spec.resourceClaims refers.

Source: core/v1 PodResourceClaim and PodStatus.resourceClaimStatuses.
"""

from __future__ import annotations

from dra_driver.model.errors import NodeError, Retry
from dra_driver.model.wire import Wire


def claim_name(pod: Wire, entry: Wire) -> str:
    """Return the name of the claim to which an entry of spec.resourceClaims refers.

    Raises: NodeError if the claim has not been created yet.
    """
    if name := entry.get("resourceClaimName"):
        return str(name)
    for status in (pod.get("status") or {}).get("resourceClaimStatuses") or []:
        if status["name"] == entry["name"]:
            return str(status["resourceClaimName"])
    message = f"pod {pod['metadata']['name']}: no claim has been created from the template of {entry['name']!r} yet"
    raise NodeError("claim", message, retry=Retry.LATER)
