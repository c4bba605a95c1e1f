"""Listed claims: this node's claims, taken from a list of all claims of the cluster, for kubelets that report none.

In: a function that lists the claims of the cluster one after the other. Out: those with devices of this driver's pools
on this node. The list is read when it is needed, never on a timer; between lists, the claims are read one by one, a few
at a time. This is used only with --takeover-list-claims; without that flag, the agent has no permission to list claims.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.backoff import Backoff
from dra_driver.kube.ports import ClaimApi
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import ClaimWire
from dra_driver.plugin.node_claims.claim_results import ClaimName, name_of, results, uid_of

LIST_SECONDS = 300.0  # how old a list may be that decides whether a claim is gone
AT_ONCE = 5  # how many claims a call of `refreshed` reads
GET_SECONDS = 2.0


class ListedClaims:
    """The claims of one node. It is not thread-safe: its owner holds a lock during each call."""

    def __init__(
        self,
        listing: Callable[[], Iterable[ClaimWire]],
        api: ClaimApi,
        *,
        driver: str,
        pools: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listing, self._api, self._driver, self._pools, self._clock = listing, api, driver, pools, clock
        self._found: dict[ClaimName, ClaimWire] = {}
        self._listed_at = float("-inf")
        self._backoff = Backoff(base_s=1.0, max_s=60.0)
        self._again_at, self._fault = float("-inf"), ApiError("not-listed", "claims were not listed yet")

    def no_older_than(self, age_s: float) -> Mapping[ClaimName, ClaimWire]:
        """Return the claims from a list that is at most `age_s` seconds old. Raises: ApiError."""
        if self._clock() - self._listed_at > age_s:
            self._refuse_early()
            try:
                found = {name_of(wire): wire for wire in self._listing() if self._is_ours(wire)}
            except ApiError as error:
                self._fault, pause = error, self._backoff.next_s()
                self._again_at = self._clock() + error.retry_after_s + pause
                raise
            self._backoff.reset()
            self._found, self._listed_at = found, self._clock()
        return self._found

    def refreshed(self) -> Mapping[ClaimName, ClaimWire]:
        """Read a few of the listed claims again, and return those that are not known to be gone."""
        for name in list(self._found)[:AT_ONCE]:
            wire = self._found.pop(name)
            try:
                now = self._api.get_claim(*name, timeout_s=GET_SECONDS)
            except ApiError as error:
                if error.code == NOT_FOUND:
                    continue
            else:
                if uid_of(now) != uid_of(wire) or not self._is_ours(now):
                    continue
            self._found[name] = wire
        return self._found

    def _refuse_early(self) -> None:
        """Raise the last error again until the pause after it is over."""
        if self._clock() < self._again_at:
            raise self._fault

    def _is_ours(self, wire: ClaimWire) -> bool:
        return any(r.get("driver") == self._driver and r.get("pool") in self._pools for r in results(wire))
