"""Allocations: which devices of this node's pool are allocated to claims that the ledger does not know.

In: those claims. Out: names of devices, including those with admin access, and whether each is allocated in shares.
This is read only when devices are about to be withdrawn or changed. A claim that was allocated a moment ago and that
the kubelet has not begun to prepare is not seen, because no agent lists the cluster's claims (docs/decisions/0013).
"""

from __future__ import annotations

from typing import Protocol

from dra_driver.model.wire import ClaimWire
from dra_driver.plugin.node_claims.claim_results import results
from dra_driver.plugin.node_identity import NodeIdentity


class UnknownClaims(Protocol):
    """The claims of this node that the ledger does not know."""

    def unknown(self, *, is_patient: bool = True, is_fresh: bool = True) -> tuple[ClaimWire, ...]:
        """Return these claims. Raises: DriverError if they can't be determined.

        Args:
            is_patient: whether to go on without the kubelet after it has not answered for a while.
            is_fresh: whether a list of the cluster's claims, where one is used, is read again.
        """


class AllocatedDevices:
    """The devices of this node's pool that are allocated to claims which the ledger does not know."""

    def __init__(self, claims: UnknownClaims, node: NodeIdentity) -> None:
        self._claims, self._node = claims, node

    def names(self, *, is_patient: bool = True) -> frozenset[str]:
        """Return the names of these devices. Raises: DriverError."""
        return frozenset(name for name, _ in self.forms(is_patient=is_patient))

    def forms(self, *, is_patient: bool = True) -> frozenset[tuple[str, bool]]:
        """Return these names, each with whether the device is allocated in shares. Raises: DriverError.

        A device that is allocated both as a whole and in shares is returned twice.
        """
        node = self._node
        found = (result for claim in self._claims.unknown(is_patient=is_patient) for result in results(claim))
        ours = (r for r in found if (r["driver"], r["pool"]) == (node.driver, node.pool))
        return frozenset((r["device"], bool(r.get("shareID"))) for r in ours)
