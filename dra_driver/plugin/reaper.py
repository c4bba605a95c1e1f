"""Reaper: removes what no claim owns; runs in the one instance that holds the node's role.

Orphan CDI files of ours, half-done claims of an agent that died, claims that are gone for good (rule: `abandoned`), MIG
mode that was switched on for partitions which are no more, sharing that no claim holds. Never what somebody else made.
`tidy` is whatever else the instance with the role has to keep right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra_driver.cdi import ids
from dra_driver.cdi.store import CdiStore
from dra_driver.model.errors import DriverError
from dra_driver.plugin.prepare import Preparer
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0


class Reaper:
    """Looks for leftovers at the start and once a minute."""

    def __init__(
        self,
        preparer: Preparer,
        store: CdiStore,
        *,
        driver: str,
        interval_s: float = INTERVAL_SECONDS,
        tidy: Callable[[], int] = lambda: 0,
    ) -> None:
        self._preparer, self._store, self._driver, self._interval_s = preparer, store, driver, interval_s
        self._tidy = tidy
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread of its own. May be called again after `stop`."""
        self._stop.clear()
        self._wake.clear()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def reap(self) -> int:
        """Look once; gives the number of leftovers removed."""
        if self._preparer.ledger.is_read_only:
            return 0
        count = self._preparer.repair() + self._reap_files() + self._reap_claims()
        self._preparer.settle_modes()
        return count + self._preparer.settle_sharing() + self._tidy()

    def look_now(self) -> None:
        """Look again soon: something changed."""
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                self.reap()
            except DriverError as error:
                log.warning("reaper could not look", extra=fields(code=error.code, err=str(error)))
            except Exception:
                log.exception("reaper failed")
            self._wake.wait(self._interval_s)
            self._wake.clear()
            if self._stop.is_set():
                return

    def _reap_files(self) -> int:
        count = 0
        for file in self._store.list(ids.vendor(self._driver)):
            uid = ids.claim_uid_of(self._driver, file)
            if uid is None:
                continue
            try:
                if self._preparer.remove_orphan(uid):
                    count += 1
                    log.warning("orphan CDI file removed", extra=fields(file=file, claim_uid=uid))
            except DriverError as error:
                log.info("CDI file not looked at", extra=fields(file=file, code=error.code, err=str(error)))
        return count

    def _reap_claims(self) -> int:
        count = 0
        for record in self._preparer.ledger.records():
            if self._stop.is_set():
                break
            try:
                count += self._preparer.evict(record.uid)
            except DriverError as error:
                log.warning("claim not reaped", extra=fields(claim=record.full_name, code=error.code, err=str(error)))
        return count
