"""Device wait: calls wait here until no other claim holds their devices; holders that no longer exist are undone."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from dra_driver.claims.plan import PreparePlan
from dra_driver.model.errors import ClaimError, PrepareError, Retry
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.conflicts import Conflict, by_holder
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import UNFINISHED
from dra_driver.plugin.prepare.claim_undo import ClaimUndo
from dra_driver.plugin.prepare.interruptible_pause import CheckTimer, InterruptiblePause
from dra_driver.plugin.prepare.release_watch import ReleaseWatch
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

HOLDER_CHECK_SECONDS = 1.0  # between two checks whether the holder of a device still exists


class DeviceWait:
    """The waiting calls of one agent."""

    def __init__(
        self, ledger: Ledger, boot_id: str, pause: InterruptiblePause, *, undo: ClaimUndo, release_watch: ReleaseWatch
    ) -> None:
        self._ledger, self._boot_id, self._pause, self._undo, self._release_watch = (
            ledger,
            boot_id,
            pause,
            undo,
            release_watch,
        )
        self._checks = CheckTimer(HOLDER_CHECK_SECONDS)

    def await_release(
        self, plan: PreparePlan, conflicts: tuple[Conflict, ...], patience: Deadline, started: float
    ) -> None:
        """Wait until no other claim holds the devices; evict holders that were deleted for good.

        `started` is when the call began, in seconds of monotonic time.

        Raises: ClaimError("claim.device-in-use"), which names the device and its holder, if the time for waiting is up;
        at once if the holder's GPU was lost meanwhile, because its pods don't end by themselves.
        """
        for device, conflict in by_holder(conflicts):
            log.info(
                "device held by another claim, waiting",
                extra=fields(claim_uid=plan.claim.uid, device=device, holder=conflict.record.full_name),
            )
        _refuse_returned(conflicts)
        while conflicts:
            seen = self._pause.seen
            self._look_at_holders(conflicts)
            if patience.has_passed() or self._pause.is_over:
                raise _in_use(conflicts, time.monotonic() - started)
            self._pause.await_change(min(HOLDER_CHECK_SECONDS, patience.remaining()), seen)
            conflicts = self._ledger.conflicts(plan.claim, plan.occupied, boot_id=self._boot_id)

    def close(self) -> None:
        """Make waiting calls give up now, and end the threads."""
        self._pause.close()
        self._release_watch.close()

    def _look_at_holders(self, conflicts: tuple[Conflict, ...]) -> None:
        """Undo holders that were deleted for good, and half-done holders on which no call is working."""
        if any(conflict.is_unprepared for conflict in conflicts):
            self._release_watch.watch()  # the agent that has watched these devices so far may have ended
        holders = {conflict.record.uid: conflict.record for conflict in conflicts if not conflict.is_unprepared}
        for record in holders.values():
            if not self._checks.is_due(record.uid):
                continue
            with suppress(PrepareError):  # another call works on it, or it can't be undone: it still holds the device
                if record.state in UNFINISHED:
                    self._undo.undo_unfinished(record.uid)
                else:
                    self._undo.evict(record.uid)


def _refuse_returned(conflicts: tuple[Conflict, ...]) -> None:
    """Refuse to wait for holders whose GPU was lost and came back. Raises: ClaimError("claim.device-in-use")."""
    lost = [(device, one.record) for device, one in by_holder(conflicts) if one.record.was_lost]
    if not lost:
        return
    device, record = lost[0]
    raise ClaimError(
        "device-in-use",
        f"still held: {device} by claim {record.full_name} (UID {record.uid}), whose GPU was lost and came back",
        hint=f"delete the pods that use claim {record.full_name}: their programs can't use the GPU any more",
        retry=Retry.LATER,
    )


def _in_use(conflicts: tuple[Conflict, ...], waited_s: float) -> ClaimError:
    held = "; ".join(_holder(device, conflict) for device, conflict in by_holder(conflicts))
    return ClaimError(
        "device-in-use",
        f"still held after {waited_s:.0f} s: {held}",
        hint="a device is free once the kubelet has unprepared its claim: look for a pod that does not terminate",
        retry=Retry.LATER,
    )


def _holder(device: str, conflict: Conflict) -> str:
    claim = f"claim {conflict.record.full_name} (UID {conflict.record.uid})"
    if conflict.users:
        return (
            f"{device} by {', '.join(conflict.users)}, which has it open through {claim}, now unprepared; end that "
            f"container, or, if its process can't harm the next one, run dra-driver release {device} --force there"
        )
    if conflict.pods:
        return (
            f"{device} by containers of pod {', '.join(conflict.pods)}, which used it through {claim}, now unprepared"
        )
    if conflict.is_unprepared:
        return f"{device} by containers that may have it through {claim}, now unprepared"
    return f"{device} by {claim}"
