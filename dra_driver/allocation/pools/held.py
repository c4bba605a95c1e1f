"""Everything that is already held: the devices and the capacity of claims that have an allocation.

In: claims as wire dicts. Out: who holds each device, and how much of shared devices is taken.

Source: Kubernetes scheduler plugin dynamicresources: admin access holds nothing; a result with a share ID holds only
its consumed capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dra_driver.allocation.pools.capacity import Amount, parse
from dra_driver.allocation.pools.devices import DeviceId, PoolId
from dra_driver.model.wire import ClaimWire


@dataclass(slots=True)
class ClaimHoldings:
    """The devices, shares and capacity that claims hold. Names of claims are "namespace/name"."""

    devices: dict[DeviceId, str] = field(default_factory=dict)
    shares: dict[DeviceId, list[str]] = field(default_factory=dict)
    capacity: dict[DeviceId, dict[str, Amount]] = field(default_factory=dict)
    by_pool: dict[PoolId, set[DeviceId]] = field(default_factory=dict)

    def add(self, claim: ClaimWire, *, shares: bool) -> set[PoolId]:
        """Add the devices and capacity of one claim; return the pools of its devices."""
        pools: set[PoolId] = set()
        allocation = (claim.get("status") or {}).get("allocation") or {}
        holder = claim_name(claim)
        for result in (allocation.get("devices") or {}).get("results") or []:
            if result.get("adminAccess"):
                continue
            device = (result["driver"], result["pool"], result["device"])
            pools.add(device[:2])
            self.by_pool.setdefault(device[:2], set()).add(device)
            if not shares or result.get("shareID") is None:
                self.devices[device] = holder
                continue
            self.shares.setdefault(device, []).append(holder)
            consumed = result.get("consumedCapacity")
            if consumed is not None:
                held = self.capacity.setdefault(device, {})
                for name, text in consumed.items():
                    held[name] = held.get(name, 0) + parse(text).value
        return pools


def held_by(claims: Iterable[ClaimWire], *, shares: bool) -> ClaimHoldings:
    """Collect what all these claims hold; `shares` says whether capacity can be shared."""
    held = ClaimHoldings()
    for claim in claims:
        held.add(claim, shares=shares)
    return held


def claim_name(claim: ClaimWire) -> str:
    """Return the name of a claim as messages write it: namespace/name."""
    metadata = claim["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
