"""Release watch: releases the devices of an unprepared claim when the containers that may use them have ended.

Once a minute the kubelet unprepares the claims of pods that it no longer knows, whether or not their containers still
run: a pod that was deleted by force may use its device for as long as the runtime takes to kill it.

In: claims that are unprepared, and the ledger's rows of unreleased claims. Out: the pods that may still be running; a
row is removed when its pods have ended. A thread checks this at once and then four times a second. After two minutes
the devices are released with a warning. Any agent on the node may check, even one that was started later.

Source: Kubernetes kubelet, DRA manager's reconcile loop.
"""

from __future__ import annotations

import logging
from pathlib import Path

from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.ledger.unreleased import UnreleasedClaim
from dra_driver.plugin.prepare.interruptible_pause import InterruptiblePause
from dra_driver.plugin.prepare.running_pods import PROC, pods_with_folders, pods_with_processes
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25
FAULT_SECONDS = 2.0  # pause after a check that failed: a full disk may make the ledger fail for a long time


class ReleaseWatch:
    """Checks in a thread, which runs from the call of `watch` for as long as a device is unreleased.

    The calls that wait for a device are woken after each release.
    """

    def __init__(
        self, ledger: Ledger, boot_id: str, pods: Path, *, waiting: InterruptiblePause, proc: Path = PROC
    ) -> None:
        self._ledger, self._boot_id, self._pods, self._waiting, self._proc = ledger, boot_id, pods, waiting, proc
        failure = "check of unreleased devices failed"
        self._loop = Loop("release-watch", self._turn, failure=failure, fault_s=FAULT_SECONDS)
        self._reported: set[str] = set()  # the UIDs of claims whose pods were logged as still running

    def pods_left(self, record: ClaimRecord) -> tuple[str, ...]:
        """Return the pods of a claim that may still use the devices that no other claim shares with it."""
        if not record.pods or not record.exclusive_names():
            return ()
        return tuple(pods_with_folders(record.pods, self._pods))

    def watch(self) -> None:
        """Check at once, and go on checking in the thread."""
        self._loop.resume()

    def close(self) -> None:
        """End the thread."""
        self._loop.stop()

    def _turn(self) -> float | None:
        try:
            return CHECK_SECONDS if self._check() else None
        except DriverError as error:
            log.warning("cannot read which devices are unreleased", extra=fields(code=error.code, err=str(error)))
            return FAULT_SECONDS

    def _check(self) -> bool:
        """Release what no pod uses any more, and return whether something is still unreleased."""
        kept = () if self._ledger.is_read_only else self._ledger.unreleased.of_boot(self._boot_id)
        if not kept:
            return False
        try:
            living = pods_with_processes({uid for each in kept for uid in each.pods}, self._proc)
        except OSError as error:
            log.warning("cannot determine which pods still run", extra=fields(err=str(error)))
            living = frozenset()
        if over := [each for each in kept if self._is_over(each, living)]:
            self._ledger.unreleased.forget(over)
            self._waiting.wake()
        return len(over) < len(kept)

    def _is_over(self, kept: UnreleasedClaim, living: frozenset[str]) -> bool:
        alive = living.intersection(kept.pods)
        record = {"claim": kept.record().full_name, "claim_uid": kept.uid}
        if alive and not kept.is_over:
            if kept.uid not in self._reported:
                self._reported.add(kept.uid)
                log.warning("claim unprepared while its pod still runs", extra=fields(holder=min(alive), **record))
            return False
        if alive:
            log.warning(
                "device released although a pod that may use it still runs", extra=fields(holder=min(alive), **record)
            )
        elif kept.uid in self._reported:
            log.info("the pod of an unprepared claim has ended", extra=fields(**record))
        self._reported.discard(kept.uid)
        return True
