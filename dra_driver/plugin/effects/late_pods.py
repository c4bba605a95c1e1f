"""Late pods: pods that join a claim after it was prepared, and that must be kept to its memory limits too.

The kubelet has a claim prepared once, for the first of its pods on the node. So while limits are in force, each new
pod's cgroup is a reason to ask which pods the claims are reserved for now. A reservation precedes the pod, and a pod's
cgroup precedes its containers, so the limit is in place before a program has started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_driver.claims.allocated import pods_of
from dra_driver.claims.memory_limits import MemoryLimitStep
from dra_driver.claims.shape import check_shape
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.model.errors import ApiError, DriverError
from dra_driver.plugin.effects.memory_limiter import limit_steps
from dra_driver.plugin.effects.pod_cgroups import PodCgroups
from dra_driver.plugin.gone_claims import API_SECONDS, ClaimApi
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import UNFINISHED, Record
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
Add = Callable[[str, tuple[str, ...]], None]
"""Limits more pods of a claim, by its UID. Raises: DriverError."""


class LatePods:
    """Looks for new pods twice a second, from the call of `watch` on, for as long as any claim has limits."""

    def __init__(self, ledger: Ledger, api: ClaimApi, cgroups: PodCgroups, *, add: Add) -> None:
        self._ledger, self._api, self._cgroups, self._add = ledger, api, cgroups, add
        self._loop = Loop("joiners", self._turn, failure="check for new pods failed", fault_s=LOOK_SECONDS)
        self._known: frozenset[str] = frozenset()

    def resume(self) -> None:
        """Start to look if claims that were prepared earlier have limits."""
        if self._limited():
            self.watch()

    def watch(self) -> None:
        """Look at once, and go on: a claim with limits is in the ledger now."""
        self._loop.resume()

    def close(self) -> None:
        """End the thread."""
        self._loop.stop()

    @property
    def is_watching(self) -> bool:
        """Whether the thread is running."""
        return self._loop.is_running

    def look(self) -> bool:
        """Look once and return whether any claim has limits. Pods that were seen before are not asked about again."""
        present = frozenset(self._cgroups.all())
        if present <= self._known:
            self._known = present
            return True
        records = self._limited()
        outcomes = [self._has_followed(record, present) for record in records]
        if all(outcomes):
            self._known = present
        return bool(records)

    def _turn(self) -> float | None:
        try:
            if self.look() or self._limited():
                return LOOK_SECONDS
        except DriverError as error:
            log.warning("cannot check for new pods", extra=fields(code=error.code, err=str(error)))
            return LOOK_SECONDS
        self._known = frozenset()  # the next start asks about all pods
        return None

    def _limited(self) -> tuple[Record, ...]:
        return self._ledger.with_step(MemoryLimitStep.kind)

    def _has_followed(self, record: Record, present: frozenset[str]) -> bool:
        """Limit the new pods of one claim; a failure here does not prevent the others from being limited."""
        try:
            return self._follow(record, present)
        except DriverError as error:
            log.warning(
                "cannot check for new pods", extra=fields(claim=record.full_name, code=error.code, err=str(error))
            )
            return False

    def _follow(self, record: Record, present: frozenset[str]) -> bool:
        """Limit the pods that have joined a claim. Return False when the claim has to be asked about again."""
        if record.state in UNFINISHED:
            return False
        try:
            wire = self._api.get_claim(record.namespace, record.name, timeout_s=API_SECONDS)
        except ApiError as error:
            return error.code == NOT_FOUND
        check_shape(wire)
        if (wire.get("metadata") or {}).get("uid") != record.uid:
            return True
        known = {pod for step in limit_steps(record) for pod in step.pods}
        joined = tuple(pod for pod in pods_of(wire) if pod in present and pod not in known)
        if not joined:
            return True
        try:
            self._add(record.uid, joined)
        except DriverError as error:
            extra = fields(claim=record.full_name, code=error.code, err=str(error))
            log.warning("memory of a pod not limited yet", extra=extra)
            return False
        log.info("pod joined a claim with memory limits", extra=fields(claim=record.full_name, holder=joined[0]))
        return True
