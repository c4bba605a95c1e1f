"""Guard: watches over devices that are kept back, until the containers that may use them have ended.

The kubelet unprepares the claims of pods that it no longer knows once a minute, whether their containers still run or
not: a pod that was deleted by force may hold its device for as long as the runtime takes to kill it.

In: claims that are unprepared, what the ledger keeps back. Out: the pods that may still be at work; rows that go once
they are not. That is looked for beside the calls, at once and then four times a second; after two minutes the device is
given on, with a warning. Any agent on the node may look, also one that was not there when the claim was unprepared.
Source: Kubernetes kubelet, DRA manager's reconcile loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.kept_back import KeptBack
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import Record
from dra_driver.plugin.running_pods import PROC, pods_with_folders, pods_with_processes
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
FAULT_SECONDS = 2.0  # until the next look after one that failed: the ledger may be on a full disk for long


class Guard:
    """Watches in a thread, from `watch` on, for as long as something is kept back; then calls `freed`."""

    def __init__(
        self, ledger: Ledger, boot_id: str, pods: Path, *, freed: Callable[[], None], proc: Path = PROC
    ) -> None:
        self._ledger, self._boot_id, self._pods, self._freed, self._proc = ledger, boot_id, pods, freed, proc
        self._mutex = threading.Lock()
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()  # claims of which somebody was found alive

    def pods_left(self, record: Record) -> tuple[str, ...]:
        """Return the pods of a claim that may still use what it has for itself."""
        if not record.exclusive_names():
            return ()
        return tuple(pods_with_folders(record.allocation.get("pods") or (), self._pods))

    def watch(self) -> None:
        """Look at once, and go on."""
        self._wake.set()
        with self._mutex:
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._wake.clear()
            has_work, pause = True, FAULT_SECONDS
            try:
                has_work, pause = self._look(), LOOK_SECONDS
            except DriverError as error:
                log.warning("can't tell what is kept back", extra=fields(code=error.code, err=str(error)))
            except Exception:
                log.exception("looking after devices that are kept back failed")
            if has_work:
                self._wake.wait(pause)
                continue
            with self._mutex:
                if not self._wake.is_set():
                    self._thread = None
                    return

    def _look(self) -> bool:
        """Let go of what nobody uses any more; whether something is left."""
        kept = () if self._ledger.is_read_only else self._ledger.kept_back.of_boot(self._boot_id)
        if not kept:
            return False
        try:
            living = pods_with_processes({uid for each in kept for uid in each.pods}, self._proc)
        except OSError as error:
            log.warning("can't tell whose containers still run", extra=fields(err=str(error)))
            living = frozenset()
        if over := [each for each in kept if self._is_over(each, living)]:
            self._ledger.kept_back.forget(over)
            self._freed()
        return len(over) < len(kept)

    def _is_over(self, kept: KeptBack, living: frozenset[str]) -> bool:
        alive = living.intersection(kept.pods)
        record = {"claim": kept.record().full_name, "claim_uid": kept.uid}
        if alive and not kept.is_over:
            if kept.uid not in self._told:
                self._told.add(kept.uid)
                log.warning("claim unprepared while its pod still runs", extra=fields(holder=min(alive), **record))
            return False
        if alive:
            log.warning("device given on although a pod still runs", extra=fields(holder=min(alive), **record))
        elif kept.uid in self._told:
            log.info("the pod of an unprepared claim has ended", extra=fields(**record))
        self._told.discard(kept.uid)
        return True
