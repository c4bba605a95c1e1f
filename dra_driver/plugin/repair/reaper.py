"""Reaper: removes what no claim owns any more. It runs in the one instance that has the node's role.

It removes CDI files of this driver without a claim, half-done claims of an agent that died, claims that were deleted
for good (`gone_claims` has the rule), MIG mode that was switched on for partitions that no longer exist, and sharing
that no claim holds. It never removes what this driver did not make. `tasks` are the other regular duties of the
instance with the role.

The API server is asked for a few claims at a time, and never for a claim that a pod has, according to the kubelet. When
the kubelet no longer reports a claim, the API server is asked for it soon, and then every quarter of an hour.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from dra_driver.cdi import ids
from dra_driver.cdi.store import CdiStore
from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.repair.repair import Repair
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
ASKED_AT_ONCE = 3  # how many claims one run asks the API server for
EXISTS_SECONDS = 900.0  # the pause before asking again for a claim that existed


class PeriodicTask(Protocol):
    """What else the instance with the role does once a minute."""

    def tidy(self) -> int:
        """Do it, and return how many things were changed. Raises: DriverError."""


class KubeletClaims(Protocol):
    """The claims of this node's pods, as the kubelet reports them."""

    def has_pod(self, record: ClaimRecord) -> bool:
        """Return whether the kubelet reports that a pod has the claim; False if it does not answer."""


class Reaper:
    """Looks for leftovers at the start and once a minute."""

    def __init__(
        self,
        repair: Repair,
        store: CdiStore,
        *,
        driver: str,
        interval_s: float = INTERVAL_SECONDS,
        tasks: Iterable[PeriodicTask] = (),
        claims: KubeletClaims | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repair, self._store, self._driver, self._interval_s = repair, store, driver, interval_s
        self._tasks, self._claims, self._clock = tuple(tasks), claims, clock
        self._due: dict[str, float] = {}  # when to ask for each claim again, by UID
        self._loop = Loop("reaper", self._turn, failure="reaper failed", fault_s=interval_s)

    def start(self) -> None:
        """Start a thread. May be called again after `stop`."""
        self._loop.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._loop.stop(timeout_s)

    def reap(self) -> int:
        """Run once, and return how many leftovers were removed. Raises: DriverError."""
        if self._repair.ledger.is_read_only:
            return 0
        count = self._repair.run() + self._reap_files() + self._reap_claims()
        self._repair.settle_modes()
        return count + self._repair.settle_sharing() + sum(task.tidy() for task in self._tasks)

    def run_soon(self) -> None:
        """Run again soon, because something changed."""
        self._loop.wake()

    def _turn(self) -> float:
        try:
            self.reap()
        except DriverError as error:
            log.warning("reaper run failed", extra=fields(code=error.code, err=str(error)))
        return self._interval_s * random.uniform(0.75, 1.25)  # noqa: S311 - jitter

    def _reap_files(self) -> int:
        count = 0
        for file in self._store.list(ids.vendor(self._driver)):
            uid = ids.claim_uid_of(self._driver, file)
            if uid is None:
                continue
            try:
                if self._repair.remove_orphan(uid):
                    count += 1
                    log.warning("orphan CDI file removed", extra=fields(file=file, claim_uid=uid))
            except DriverError as error:
                log.info("CDI file not checked", extra=fields(file=file, code=error.code, err=str(error)))
        return count

    def _reap_claims(self) -> int:
        count = 0
        for record in self._to_ask(self._repair.ledger.records()):
            if self._loop.is_stopped:
                break
            self._due[record.uid] = self._clock() + EXISTS_SECONDS * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
            try:
                count += self._repair.evict(record.uid)
            except DriverError as error:
                log.warning("claim not reaped", extra=fields(claim=record.full_name, code=error.code, err=str(error)))
        return count

    def _to_ask(self, records: Iterable[ClaimRecord]) -> Iterator[ClaimRecord]:
        """Yield the claims to ask for now: those that were missing before, then those whose turn is longest overdue."""
        absent = [record for record in records if self._claims is None or not self._claims.has_pod(record)]
        self._due = {r.uid: self._due.get(r.uid, float("-inf")) for r in absent}
        now = self._clock()
        # A claim without a name is looked up through this node's kubelet, which costs the API server nothing.
        yield from (record for record in absent if not record.name)
        due = [r for r in absent if r.name and (r.gone_since is not None or self._due[r.uid] <= now)]
        due.sort(key=lambda record: (record.gone_since is None, self._due[record.uid]))
        yield from due[:ASKED_AT_ONCE]
