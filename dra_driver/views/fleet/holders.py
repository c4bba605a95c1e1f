"""The claims that hold devices of one driver, each as a line with the pods that use it.

In: claims as wire dicts. Out: text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_driver.model.wire import Wire


def holders(claims: Iterable[Wire], driver: str) -> Iterator[str]:
    """Yield a line for each claim that holds devices of a driver."""
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        devices = [f"{result['pool']}/{result['device']}" for result in results if result.get("driver") == driver]
        if devices:
            meta = claim["metadata"]
            users = ", ".join(f"{u['resource']} {u['name']}" for u in (claim["status"].get("reservedFor") or ()))
            yield f"claim {meta['namespace']}/{meta['name']}: {', '.join(devices)}; used by {users or 'no pod'}"
