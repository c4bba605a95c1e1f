"""Claims on nodes: the pods that have a device node through another claim than the one whose devices are released.

In: the ledger, the CDI files, and the API for pods that joined such a claim later. Out: UIDs of pods. Such a claim has
admin access, which no release waits for, or a new MIG partition whose nodes have the numbers of one that is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from dra_driver.claims.allocated.decoding import pods_of
from dra_driver.claims.allocated.shape import check_shape
from dra_driver.kube.ports import ClaimApi
from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.ledger.unreleased import UnreleasedClaim
from dra_driver.plugin.node_claims.gone_claims import API_SECONDS
from dra_driver.plugin.prepare.node_numbers import NodeNumbers

READ_SECONDS = 10.0  # how long the answer of the API about one claim is kept


class ClaimsOnNodes:
    """The claims of one machine, by their device nodes. It is used by one thread."""

    def __init__(
        self, ledger: Ledger, numbers: NodeNumbers, api: ClaimApi, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger, self._numbers, self._api, self._clock = ledger, numbers, api, clock
        self._read: dict[str, tuple[float, frozenset[str]]] = {}  # by UID: when a claim was read, and its pods

    def pods_among(self, pods: Collection[str], kept: UnreleasedClaim) -> frozenset[str]:
        """Return those of the pods that have a node of an unreleased claim through another claim. Raises: LedgerError.

        The API is asked only about pods that the ledger does not know.
        """
        others = [
            record
            for record in self._ledger.records()
            if record.uid != kept.uid and self._numbers.all(record.uid).intersection(kept.nodes)
        ]
        known = {pod for record in others for pod in record.pods}
        for record in others:
            if not known.issuperset(pods):
                known |= self._joined(record)
        return frozenset(known.intersection(pods))

    def _joined(self, record: ClaimRecord) -> frozenset[str]:
        """Return the pods for which a claim is reserved now; none if it can't be read."""
        now = self._clock()
        self._read = {uid: found for uid, found in self._read.items() if now - found[0] < READ_SECONDS}
        if record.uid not in self._read:
            self._read[record.uid] = now, self._reserved_for(record)
        return self._read[record.uid][1]

    def _reserved_for(self, record: ClaimRecord) -> frozenset[str]:
        try:
            wire = self._api.get_claim(record.namespace, record.name, timeout_s=API_SECONDS)
            check_shape(wire)
        except DriverError:
            return frozenset()
        is_same = (wire.get("metadata") or {}).get("uid") == record.uid
        return frozenset(pods_of(wire) if is_same else ())
