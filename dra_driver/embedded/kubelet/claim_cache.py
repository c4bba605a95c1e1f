"""Claim cache: what the kubelet has recorded of its pods' claims, in memory only.

Source: kubelet cm/dra (1.34 to 1.36.3), claiminfo.go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dra_driver.embedded.kubelet.plugin_calls import ClaimRef, ReportedDevice
from dra_driver.model.errors import NodeError, Retry


@dataclass(slots=True)
class CachedClaim:
    """What the kubelet has recorded of a claim: its drivers, its pods' UIDs, and the prepared devices by driver."""

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[ReportedDevice]] = field(default_factory=dict)
    is_prepared: bool = False

    def devices_of(self, request: str) -> Iterator[ReportedDevice]:
        """Yield the devices that belong to a request ("" for all)."""
        for devices in self.devices.values():
            for device in devices:
                if not request or not device.request_names or request in device.request_names:
                    yield device


class ClaimCache:
    """The claims of one kubelet, by namespace and name. Every method may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], CachedClaim] = {}

    def all(self) -> tuple[CachedClaim, ...]:
        """Return every claim."""
        with self._lock:
            return tuple(self._claims.values())

    def get(self, namespace: str, name: str) -> CachedClaim:
        """Return one claim. Raises: KeyError for a claim that is not recorded."""
        with self._lock:
            return self._claims[namespace, name]

    def add_pod(self, ref: ClaimRef, drivers: tuple[str, ...], pod: str) -> CachedClaim:
        """Record that the pod with this UID uses a claim.

        Raises: NodeError("node.claim") if an older claim of the same name is still recorded.
        """
        with self._lock:
            cached = self._claims.get((ref.namespace, ref.name))
            if cached is not None and cached.ref.uid != ref.uid:
                message = (
                    f"old resource claim with same name {ref.name} and different UID {cached.ref.uid} still exists"
                )
                raise NodeError("claim", message, retry=Retry.LATER)
            if cached is None:
                cached = self._claims[ref.namespace, ref.name] = CachedClaim(ref, drivers)
            cached.pods.add(pod)
            return cached

    def add_devices(self, claim: CachedClaim, driver: str, devices: Sequence[ReportedDevice]) -> None:
        """Record what a driver has prepared.

        The result of a repeated call is appended, as kubelets up to 1.36.3 do; those of 1.36.4 and 1.37 replace it.
        """
        with self._lock:
            claim.devices.setdefault(driver, []).extend(devices)

    def set_prepared(self, claims: Iterable[CachedClaim], *, is_prepared: bool) -> None:
        """Record whether all drivers of these claims have prepared them."""
        with self._lock:
            for claim in claims:
                claim.is_prepared = is_prepared

    def release(self, pod: str) -> list[CachedClaim]:
        """Remove a pod from the claims that other pods use too.

        Return the claims that no other pod uses; they stay recorded until they are removed.
        """
        with self._lock:
            mine = [claim for claim in self._claims.values() if pod in claim.pods]
            ending = [claim for claim in mine if claim.pods == {pod}]
            for claim in mine:
                if claim not in ending:
                    claim.pods.discard(pod)
        return ending

    def remove(self, claims: Iterable[CachedClaim]) -> None:
        """Forget claims."""
        with self._lock:
            for claim in claims:
                self._claims.pop((claim.ref.namespace, claim.ref.name), None)
