"""Scheduler: one scheduling step for one pod on one node, through the API.

In: a pod whose claims exist. Out: claims allocated and reserved for it, the pod bound; or why it stays pending. All of
a pod's claims are placed before the first is written. Source: scheduler plugin dynamicresources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dra_driver.embedded.api_port import Api
from dra_driver.embedded.first_fit import DeviceId, Outcome, first_fit
from dra_driver.embedded.kinds import CLAIMS, CLASSES, PODS, SLICES
from dra_driver.embedded.pods import FINALIZER, claims_of
from dra_driver.model.wire import ClaimWire, Wire
from dra_driver.selectors import compile_selector


@dataclass(frozen=True, slots=True)
class Placement:
    """What became of one claim of a pod. A claim that was allocated before has no choices."""

    claim: str
    outcome: Outcome


class EmbeddedScheduler:
    """Schedules pods onto one node."""

    def __init__(self, api: Api, *, node: str, kubernetes: str = "1.36") -> None:
        self._api = api
        self._node = node
        self._compile = lru_cache(maxsize=256)(lambda text: compile_selector(text, kubernetes=kubernetes))

    def schedule(self, pod: Wire) -> tuple[Wire, list[Placement]]:
        """Place a pod. Returns it (bound if all its claims were placed) and what became of each claim."""
        claims = claims_of(self._api, pod)
        slices = self._items(SLICES.path())
        classes = {item["metadata"]["name"]: item for item in self._items(CLASSES.path())}
        in_use = dict(held_devices(self._items(CLAIMS.path())))
        placements: list[Placement] = []
        for claim in claims:
            name = claim["metadata"]["name"]
            if allocation := (claim.get("status") or {}).get("allocation"):
                placements.append(Placement(name, Outcome(allocation)))
                continue
            outcome = first_fit(
                claim,
                slices=slices,
                classes=classes,
                in_use=in_use,
                node=self._node,
                compile_selector=self._compile,
            )
            placements.append(Placement(name, outcome))
            in_use |= {choice.id: name for choice in outcome.choices if not choice.is_admin}
        if any(placement.outcome.allocation is None for placement in placements):
            return pod, placements
        for claim, placement in zip(claims, placements, strict=True):
            self._reserve(claim, placement.outcome.allocation, pod)
        bound = {**pod, "spec": {**pod["spec"], "nodeName": self._node}}
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
        return self._api.request("PUT", path, body=bound), placements

    def _reserve(self, claim: ClaimWire, allocation: Wire | None, pod: Wire) -> None:
        """Write the finalizer, then allocation and reservation, as the scheduler's PreBind does."""
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


def held_devices(claims: list[ClaimWire]) -> Mapping[DeviceId, str]:
    """Give every device that some claim holds, and that claim's name; admin access holds nothing."""
    held: dict[DeviceId, str] = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or []:
            if not result.get("adminAccess"):
                held[result["driver"], result["pool"], result["device"]] = claim["metadata"]["name"]
    return held
