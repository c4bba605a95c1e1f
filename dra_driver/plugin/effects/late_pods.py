"""Late pods: pods that join a claim after it was prepared, and to which its memory limits apply too.

The kubelet calls Prepare once for a claim, for the first of its pods on the node. So while limits are in force, the
claims are read again whenever a new pod has a cgroup, to see for which pods they are reserved now. The reservation is
made before the pod starts, and a pod's cgroup before its containers, so the limit is set before a program starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dra_driver.claims.allocated.decoding import pods_of
from dra_driver.claims.allocated.shape import check_shape
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.ports import ClaimApi
from dra_driver.model.errors import ApiError, DriverError
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.effects.memory_limiter import MemoryLimiter
from dra_driver.plugin.effects.pod_cgroups import PodCgroups
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import UNFINISHED, ClaimRecord
from dra_driver.plugin.ledger.recorded_steps import RecordedLimit, RecordedStep
from dra_driver.plugin.locks import NodeLocks, claim_lock
from dra_driver.plugin.node_claims.gone_claims import API_SECONDS
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
JOIN_SECONDS = 4.0  # how long limiting the new pods of one claim may take


class LatePods:
    """Looks for new pods twice a second, after `follow` or `resume` was called, as long as any claim has limits."""

    def __init__(
        self, ledger: Ledger, api: ClaimApi, cgroups: PodCgroups, locks: NodeLocks, limiter: MemoryLimiter
    ) -> None:
        self._ledger, self._api, self._cgroups, self._locks, self._limiter = ledger, api, cgroups, locks, limiter
        self._loop = Loop("late-pods", self._turn, failure="check for new pods failed", fault_s=CHECK_SECONDS)
        self._known: frozenset[str] = frozenset()

    def resume(self) -> None:
        """Start looking for new pods if claims that were prepared earlier have limits."""
        if self._limited():
            self._loop.resume()

    def follow(self, prepared: Iterable[RecordedStep]) -> None:
        """Look at once, and go on looking, if the steps of the claim that was just prepared include limits."""
        if any(isinstance(step, RecordedLimit) for step in prepared):
            self._loop.resume()

    def close(self) -> None:
        """End the thread."""
        self._loop.stop()

    @property
    def is_watching(self) -> bool:
        """Whether the thread is running."""
        return self._loop.is_running

    def check(self) -> bool:
        """Check once, and return whether any claim has limits. The API is asked only if there are new pods."""
        present = frozenset(self._cgroups.all())
        if present <= self._known:
            self._known = present
            return True
        records = self._limited()
        outcomes = [self._try_follow(record, present) for record in records]
        if all(outcomes):
            self._known = present
        return bool(records)

    def _turn(self) -> float | None:
        try:
            if self.check() or self._limited():
                return CHECK_SECONDS
        except DriverError as error:
            log.warning("cannot check for new pods", extra=fields(code=error.code, err=str(error)))
            return CHECK_SECONDS
        self._known = frozenset()  # so that all pods count as new after the next start
        return None

    def _limited(self) -> tuple[ClaimRecord, ...]:
        return self._ledger.with_step(RecordedLimit)

    def _try_follow(self, record: ClaimRecord, present: frozenset[str]) -> bool:
        """Limit the new pods of one claim as `_follow` does, but log errors, so that other claims are limited too."""
        try:
            return self._follow(record, present)
        except DriverError as error:
            log.warning(
                "cannot check for new pods", extra=fields(claim=record.full_name, code=error.code, err=str(error))
            )
            return False

    def _follow(self, record: ClaimRecord, present: frozenset[str]) -> bool:
        """Limit the pods that have joined a claim. Return False if the claim has to be read again."""
        if record.state in UNFINISHED:
            return False
        try:
            wire = self._api.get_claim(record.namespace, record.name, timeout_s=API_SECONDS)
        except ApiError as error:
            return error.code == NOT_FOUND
        check_shape(wire)
        if (wire.get("metadata") or {}).get("uid") != record.uid:
            return True
        known = {pod for step in record.steps_of(RecordedLimit) for pod in step.pods}
        joined = tuple(pod for pod in pods_of(wire) if pod in present and pod not in known)
        if not joined:
            return True
        try:
            self._limit(record.uid, joined)
        except DriverError as error:
            extra = fields(claim=record.full_name, code=error.code, err=str(error))
            log.warning("memory of a pod not limited yet", extra=extra)
            return False
        log.info("pod joined a claim with memory limits", extra=fields(claim=record.full_name, holder=joined[0]))
        return True

    def _limit(self, uid: str, pods: tuple[str, ...]) -> None:
        """Apply a prepared claim's memory limits to pods that joined it. Raises: DriverError."""
        deadline = Deadline.after(JOIN_SECONDS)
        with self._locks.hold([claim_lock(uid)], deadline):
            self._limiter.join(uid, pods, deadline)
