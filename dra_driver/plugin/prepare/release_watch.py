"""Release watch: releases the devices of an unprepared claim when no container uses them any more.

Once a minute the kubelet unprepares the claims of pods that it no longer knows, whether or not their containers still
run: a pod that was deleted by force may use its device for as long as the runtime takes to kill it. Nor are all pods
known that used the claim: the kubelet prepares it once, and others join later. So only the kernel shows the end.

In: claims that are unprepared, the ledger's rows of unreleased claims, and procfs. Out: the pods and nodes that may
still be in use; a row is removed when they are not. A thread checks this at once and then up to four times a second.
A process that has a node of the device open holds it without limit of time, until the process ends or a person releases
it. A container of the claim's pods that only runs, and any that only has the node, hold it for two minutes; so do
processes that can't be seen. Any agent on the node may check, even one that was started later.

Source: Kubernetes kubelet, DRA manager's reconcile loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path

from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.record import ClaimRecord
from dra_driver.plugin.ledger.recorded_steps import RecordedLimit
from dra_driver.plugin.ledger.unreleased import UnreleasedClaim
from dra_driver.plugin.prepare.claims_on_nodes import ClaimsOnNodes
from dra_driver.plugin.prepare.interruptible_pause import InterruptiblePause
from dra_driver.plugin.prepare.node_numbers import NodeNumbers
from dra_driver.plugin.prepare.node_users import NodeLook, NodeUser, look_at_nodes
from dra_driver.plugin.prepare.running_pods import PROC, pods_with_folders, pods_with_processes
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25
LOOK_SHARE = 4.0  # the pause after a check is at least this many times as long as the check took
IDLE_SECONDS = 1.0  # how long the thread waits for a next claim: to start a thread takes half as long as an Unprepare
FAULT_SECONDS = 2.0  # pause after a check that failed: a full disk may make the ledger fail for a long time
BLIND = "release.blind"


class ReleaseWatch:
    """Checks in a thread, which runs from the call of `watch` until no device has been unreleased for a second.

    The calls that wait for a device are woken after each release.
    """

    def __init__(
        self,
        ledger: Ledger,
        boot_id: str,
        pods: Path,
        *,
        numbers: NodeNumbers,
        others: ClaimsOnNodes,
        waiting: InterruptiblePause,
        proc: Path = PROC,
    ) -> None:
        self._ledger, self._boot_id, self._pods, self._waiting, self._proc = ledger, boot_id, pods, waiting, proc
        self._numbers, self._others = numbers, others
        failure = "check of unreleased devices failed"
        self._loop = Loop("release-watch", self._turn, failure=failure, fault_s=FAULT_SECONDS)
        self._is_asked = False  # whether there is something to check
        self._reported: set[str] = set()  # the UIDs of claims whose users were logged
        self._is_blind_reported = False

    def pods_left(self, record: ClaimRecord) -> tuple[str, ...]:
        """Return the known pods of a claim that may still use the devices that no other claim shares with it."""
        if not record.exclusive_names():
            return ()
        joined = (pod for step in record.steps_of(RecordedLimit) for pod in step.pods)
        return tuple(pods_with_folders(dict.fromkeys((*record.pods, *joined)), self._pods))

    def nodes_of(self, record: ClaimRecord) -> frozenset[int]:
        """Return the device nodes by which containers may still use these devices, while the claim's file exists.

        Raises: LedgerError.
        """
        noted = self._ledger.unreleased.noted_nodes(record.uid, self._boot_id)
        return self._numbers.exclusive(record).union(noted)

    def note_nodes(self, record: ClaimRecord, nodes: Collection[int]) -> None:
        """Record the device nodes of a claim that is about to be undone. Raises: LedgerError."""
        self._ledger.unreleased.note_nodes(record.uid, self._boot_id, nodes)

    def watch(self) -> None:
        """Check at once, and go on checking in the thread."""
        self._is_asked = True
        self._loop.resume()

    def close(self) -> None:
        """End the thread."""
        self._loop.stop()

    def _turn(self) -> float | None:
        if not self._is_asked:
            return None
        self._is_asked, is_needed = False, True
        begun = time.monotonic()
        try:
            is_needed = self._check()
        except DriverError as error:
            log.warning("cannot read which devices are unreleased", extra=fields(code=error.code, err=str(error)))
            return FAULT_SECONDS
        finally:
            if is_needed:  # otherwise it stays as `watch` may have set it meanwhile
                self._is_asked = True
        return max(CHECK_SECONDS, LOOK_SHARE * (time.monotonic() - begun)) if is_needed else IDLE_SECONDS

    def _check(self) -> bool:
        """Release what no container uses any more, and return whether something is still unreleased."""
        kept = () if self._ledger.is_read_only else self._ledger.unreleased.of_boot(self._boot_id)
        if not kept:
            return False
        look = self._look(kept)
        living = self._living({uid for each in kept for uid in each.pods}, look)
        if look.is_blind and not self._is_blind_reported:
            self._is_blind_reported = True
            log.warning(
                "the agent may not see the processes of containers, so released devices stay unused for two minutes",
                extra=fields(code=BLIND, err=look.problem),
            )
        if over := [each for each in kept if self._is_over(each, living, look)]:
            self._ledger.unreleased.forget(over)
            self._waiting.wake()
        return len(over) < len(kept)

    def _look(self, kept: Collection[UnreleasedClaim]) -> NodeLook:
        """Look for all users of the nodes of these claims."""
        return look_at_nodes({node for each in kept for node in each.nodes}, self._proc)

    def _living(self, uids: Collection[str], look: NodeLook) -> frozenset[str]:
        """Return which of these pods have a process, as far as it can be seen."""
        if not uids:
            return frozenset()
        try:
            return pods_with_processes(uids, self._proc)
        except OSError as error:
            look.fail(error)
            return frozenset()

    def _is_over(self, kept: UnreleasedClaim, living: frozenset[str], look: NodeLook) -> bool:
        found = self._users(kept, look)
        users = tuple(sorted(str(user) for user in found if user.pid))
        problem = _problem(kept, look)
        if problem:
            users = tuple(sorted({*users, *kept.users}))  # a process that was seen may have been missed this time
        if users != kept.users:
            self._ledger.unreleased.set_users(kept, users)
        if users:
            self._report(kept, "device stays unreleased because a process has it open", users[0])
            return False
        holders = sorted({*living.intersection(kept.pods), *(user.pod for user in found)})
        if not kept.is_over and (holders or problem):
            if holders:
                self._report(kept, "claim unprepared while its pod still runs", holders[0])
            return False
        self._report_release(kept, holders, problem)
        return True

    def _users(self, kept: UnreleasedClaim, look: NodeLook) -> list[NodeUser]:
        """Return who uses a claim's nodes, except containers that have them for another reason than this claim."""
        every = [user for user in look.users if user.number in kept.nodes]
        unknown = {user.pod for user in every if user.pod not in kept.pods and not user.is_of_host}
        excused = self._others.pods_among(unknown, kept) if unknown else frozenset()
        return [user for user in every if user.pod in kept.pods or user.pod in unknown - excused]

    def _report(self, kept: UnreleasedClaim, message: str, holder: str) -> None:
        key = f"{kept.uid} {message}"
        if key not in self._reported:
            self._reported.add(key)
            log.warning(message, extra=fields(holder=holder, device=", ".join(kept.devices), **_name(kept)))

    def _report_release(self, kept: UnreleasedClaim, holders: list[str], problem: str) -> None:
        if holders:
            text = "device released although a pod that may use it still runs"
            log.warning(text, extra=fields(holder=holders[0], **_name(kept)))
        elif problem:
            text = "device released although it can't be seen whether a pod uses it"
            log.warning(text, extra=fields(err=problem, **_name(kept)))
        elif any(key.startswith(f"{kept.uid} ") for key in self._reported):
            log.info("the pod of an unprepared claim has ended", extra=fields(**_name(kept)))
        self._reported = {key for key in self._reported if not key.startswith(f"{kept.uid} ")}


def _problem(kept: UnreleasedClaim, look: NodeLook) -> str:
    """Return why a process that has a node of a claim open may not have been seen; "" if all were."""
    is_ending = not look.ending.isdisjoint(("", *kept.pods)) or any(
        pod in user for user in kept.users for pod in look.ending
    )
    return look.problem or ("a process that may have it open is ending" if is_ending else "")


def _name(kept: UnreleasedClaim) -> dict[str, str]:
    return {"claim": kept.record().full_name, "claim_uid": kept.uid}
