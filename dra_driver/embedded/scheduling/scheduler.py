"""Scheduler: one scheduling step for one pod on one node, through the API.

In: a pod whose claims exist. Out: its claims allocated and reserved and the pod bound, or why it stays pending. All
claims of the pod are placed before the first is written. Source: scheduler plugin dynamicresources.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.embedded.api.kinds import CLAIMS, CLASSES, PODS, SLICES
from dra_driver.embedded.api.port import Api
from dra_driver.embedded.scheduling.placement import ClaimOutcome, place
from dra_driver.embedded.scheduling.pods import FINALIZER, claims_of
from dra_driver.model.wire import ClaimWire, Wire


@dataclass(frozen=True, slots=True)
class ClaimPlacement:
    """The result for one claim of a pod. A claim that was allocated before has no choices."""

    claim: str
    outcome: ClaimOutcome


class EmbeddedScheduler:
    """Schedules pods onto one node."""

    def __init__(self, api: Api, *, node: str, kubernetes: str = "1.36") -> None:
        self._api = api
        self._node = node
        self._kubernetes = kubernetes

    def schedule(self, pod: Wire) -> tuple[Wire, list[ClaimPlacement]]:
        """Place a pod. Return the pod (bound if all its claims were placed) and the result for each claim."""
        claims = claims_of(self._api, pod)
        known = [(claim.get("status") or {}).get("allocation") for claim in claims]
        waiting = [claim for claim, allocation in zip(claims, known, strict=True) if not allocation]
        made = iter(
            place(
                waiting,
                slices=self._items(SLICES.path()),
                classes=self._items(CLASSES.path()),
                held=self._items(CLAIMS.path()),
                node=self._node,
                kubernetes=self._kubernetes,
            )
        )
        placements = [
            ClaimPlacement(claim["metadata"]["name"], ClaimOutcome(allocation) if allocation else next(made))
            for claim, allocation in zip(claims, known, strict=True)
        ]
        if any(placement.outcome.allocation is None for placement in placements):
            return pod, placements
        for claim, placement in zip(claims, placements, strict=True):
            self._reserve(claim, placement.outcome.allocation, pod)
        bound = {**pod, "spec": {**pod["spec"], "nodeName": self._node}}
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
        return self._api.request("PUT", path, body=bound), placements

    def _reserve(self, claim: ClaimWire, allocation: Wire | None, pod: Wire) -> None:
        """Write the finalizer, and then allocation and reservation, as the scheduler's PreBind does."""
        metadata = claim["metadata"]
        path = CLAIMS.path(metadata["namespace"], metadata["name"])
        if FINALIZER not in (metadata.get("finalizers") or []):
            finalizers = [*(metadata.get("finalizers") or []), FINALIZER]
            claim = self._api.request("PUT", path, body={**claim, "metadata": {**metadata, "finalizers": finalizers}})
        status = dict(claim.get("status") or {})
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        status |= {"allocation": allocation, "reservedFor": [*(status.get("reservedFor") or []), user]}
        self._api.request("PUT", path + "/status", body={**claim, "status": status})

    def _items(self, path: str) -> list[Wire]:
        items: list[Wire] = self._api.request("GET", path)["items"]
        return items
