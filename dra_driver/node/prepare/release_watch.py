"""Release watch: releases the devices of an unprepared claim when no container uses them any more.

Once a minute the kubelet unprepares the claims of pods that it no longer knows, whether or not their containers still
run: a pod that was deleted by force may use its device for as long as the runtime takes to kill it. Nor are all pods
known that used the claim: the kubelet prepares it once, and others join later. So only the kernel shows the end.

In: claims that are unprepared, the ledger's rows of unreleased claims, and procfs. Out: the pods and nodes that may
still be in use; a row is removed when they are not. A thread checks this at once and then up to four times a second.
A process that has a node of the device open holds it without limit of time, until the process ends or a person releases
it. A container of the claim's pods that only runs, and any that only has the node, hold it for two minutes; so do
processes that can't be seen. Among them are those that were ending already at the first look: the kernel does not show
what they still have open, and their pod may have joined the claim unseen. Any agent on the node may check, even one
that was started later.

Source: Kubernetes kubelet, DRA manager's reconcile loop.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from dra_driver.base.errors import DriverError
from dra_driver.base.telemetry.logs import Loop, fields, start_thread
from dra_driver.base.wire import Wire
from dra_driver.kube.paths import ClaimApi
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.claims.allocated import check_shape, pods_of
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord
from dra_driver.node.ledger.recorded_steps import RecordedLimit
from dra_driver.node.ledger.unreleased import UnreleasedClaim
from dra_driver.node.neighbours.gone_claims import API_SECONDS
from dra_driver.node.prepare.node_users import (
    PROC,
    NodeLook,
    NodeUser,
    look_at_nodes,
    pods_with_folders,
    pods_with_processes,
)

# Node numbers: the device nodes that a claim's own devices have to themselves, from the claim's CDI file.

NULL = os.makedev(1, 3)
_PARTITION = "/dev/nvidia-caps/"  # nodes that belong to one partition; its GPU's node belongs to several


class NodeNumbers:
    """The device numbers of one node's claims, as far as their CDI files exist.

    Its methods raise PrepareError("prepare.cdi-read", LATER) while this process can't open the files.
    """

    def __init__(self, store: CdiStore, driver: str) -> None:
        self._store, self._driver = store, driver

    def owned(self, record: ClaimRecord) -> frozenset[int]:
        """Return the numbers of the nodes that the devices have to themselves which a claim owns, or shares."""
        own = {cdi.device_name(record.uid, name, share_id or None) for name, share_id in record.owned()}
        return frozenset(number for name, number in self._numbers(record.uid) if name in own)

    def all(self, uid: str) -> frozenset[int]:
        """Return the numbers of the nodes that one device of a claim, shared or not, has to itself."""
        return frozenset(number for _, number in self._numbers(uid))

    def _numbers(self, uid: str) -> Iterator[tuple[str, int]]:
        """Yield the name of a device in the claim's file with the number of each of its own nodes."""
        devices = (self._store.read(cdi.claim_file(self._driver, uid)) or {}).get("devices")
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, dict):
                yield from ((str(device.get("name")), number) for number in _own(_nodes(device)))


def _nodes(device: Wire) -> list[Any]:
    edits = device.get("containerEdits")
    found = edits.get("deviceNodes") if isinstance(edits, dict) else None
    return [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []


def _own(nodes: Iterable[Wire]) -> Iterator[int]:
    every = list(nodes)
    partition = [node for node in every if str(node.get("path")).startswith(_PARTITION)]
    for node in partition or every:
        major, minor = node.get("major"), node.get("minor")
        if isinstance(major, int) and isinstance(minor, int) and (number := os.makedev(major, minor)) != NULL:
            yield number


# Claims on nodes: the pods that have a device node through another claim than the one whose devices are released.

READ_SECONDS = 10.0  # how long the answer of the API about one claim is kept


class ClaimsOnNodes:
    """The claims of one machine, by their device nodes. It is used by one thread."""

    def __init__(
        self, ledger: Ledger, numbers: NodeNumbers, api: ClaimApi, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger, self._numbers, self._api, self._clock = ledger, numbers, api, clock
        self._read: dict[str, tuple[float, frozenset[str]]] = {}  # by UID: when a claim was read, and its pods

    def pods_among(self, pods: Collection[str], kept: UnreleasedClaim) -> frozenset[str]:
        """Return those of the pods that have a node of an unreleased claim through another claim.

        Raises: LedgerError, PrepareError.

        The API is asked only about pods that the ledger does not know.
        """
        others = [
            record
            for record in self._ledger.records()
            if record.uid != kept.uid and self._numbers.all(record.uid).intersection(kept.nodes)
        ]
        known = {pod for record in others for pod in record.pods}
        for record in others:
            if not known.issuperset(pods):
                known |= self._joined(record)
        return frozenset(known.intersection(pods))

    def _joined(self, record: ClaimRecord) -> frozenset[str]:
        """Return the pods for which a claim is reserved now; none if it can't be read."""
        now = self._clock()
        self._read = {uid: found for uid, found in self._read.items() if now - found[0] < READ_SECONDS}
        if record.uid not in self._read:
            self._read[record.uid] = now, self._reserved_for(record)
        return self._read[record.uid][1]

    def _reserved_for(self, record: ClaimRecord) -> frozenset[str]:
        try:
            wire = self._api.get_claim(record.namespace, record.name, timeout_s=API_SECONDS)
            check_shape(wire)
        except DriverError:
            return frozenset()
        is_same = (wire.get("metadata") or {}).get("uid") == record.uid
        return frozenset(pods_of(wire) if is_same else ())


# InterruptiblePause: calls sleep here until a device may be free, their time is up, or the agent ends.

log = logging.getLogger(__name__)

APART_SECONDS, APART_MAX_SECONDS = 0.001, 0.2  # the pause between two woken calls, and the most of all such pauses
POLL_SECONDS = 0.1  # between two checks of the ledger while a call sleeps


class Versioned(Protocol):
    """A ledger, of which only the changes matter here."""

    def version(self) -> object:
        """Return a value that is different after every change, by whatever process. Raises: LedgerError."""


class InterruptiblePause:
    """The sleeping calls of one agent, which are woken by changes of its ledger. `is_over`: whether the agent ends."""

    def __init__(self, ledger: Versioned) -> None:
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._condition = threading.Condition(self._mutex)
        self._sleepers = 0
        self._is_watched = False
        self.seen = 0  # the number of changes so far
        self.is_over = False

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the agent ends."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_over, seconds)

    def await_change(self, seconds: float, seen: int) -> None:
        """Sleep until something changes, for at most `seconds`. Return at once if something has changed since `seen`.

        Calls go on one after the other: the first takes what has become free, and the others see that it is taken.

        Raises: NodeError("node.thread").
        """
        with self._condition:
            if not self._is_watched:
                start_thread(threading.Thread(target=self._watch, name="waiting", daemon=True))
                self._is_watched = True
            self._sleepers += 1
            self._condition.wait_for(lambda: self.is_over or self.seen != seen, seconds)
            others = 0 if self.is_over else self._sleepers - 1
            self._sleepers -= 1
        time.sleep(random.uniform(0, min(others * APART_SECONDS, APART_MAX_SECONDS)))  # noqa: S311 - no secret

    def wake(self) -> None:
        """Wake every call, because a device may be free."""
        with self._mutex:
            self.seen += 1
            if self._sleepers:
                self._condition.notify_all()

    def close(self) -> None:
        """Wake every call, and prevent calls from sleeping from now on."""
        with self._condition:
            self.is_over = True
            self._condition.notify_all()

    def _watch(self) -> None:
        """Wake every call when the ledger changes, until no call is sleeping."""
        known = self._ledger_version()
        while True:
            time.sleep(POLL_SECONDS)
            with self._condition:  # checked before the ledger is read, because it may have been closed by now
                if self.is_over or not self._sleepers:
                    self._is_watched = False
                    return
            now = self._ledger_version()
            if now != known:
                known = now
                self.wake()

    def _ledger_version(self) -> object:
        try:
            return self._ledger.version()
        except DriverError:  # a call will meet the same error, and report it
            return None


class CheckTimer:
    """Decides which of many waiting calls checks something: one call in `interval_s` seconds for each key."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._mutex = threading.Lock()
        self._at: dict[str, float] = {}

    def is_due(self, key: str) -> bool:
        """Return whether no call has checked within the interval; if so, the caller has to check."""
        now = time.monotonic()
        with self._mutex:
            self._at = {known: at for known, at in self._at.items() if now - at < self._interval_s}
            if key in self._at:
                return False
            self._at[key] = now
            return True


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
        self._ending: dict[tuple[str, float], frozenset[int]] = {}  # by row: processes that were ending in each look
        self._is_blind_reported = False

    def pods_left(self, record: ClaimRecord) -> tuple[str, ...]:
        """Return the known pods of a claim that may still use the devices that it owns, or shares."""
        if not record.owned():
            return ()
        joined = (pod for step in record.steps_of(RecordedLimit) for pod in step.pods)
        return tuple(pods_with_folders(dict.fromkeys((*record.pods, *joined)), self._pods))

    def nodes_of(self, record: ClaimRecord) -> frozenset[int]:
        """Return the device nodes by which containers may still use these devices, while the claim's file exists.

        Raises: LedgerError, PrepareError.
        """
        noted = self._ledger.unreleased.noted_nodes(record.uid, self._boot_id)
        return self._numbers.owned(record).union(noted)

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
        self._keep_ending(kept, look)
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
        problem = self._problem(kept, look)
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

    def _keep_ending(self, kept: Iterable[UnreleasedClaim], look: NodeLook) -> None:
        """Remember which processes have been ending since each claim's devices were looked at first.

        One that begins to end later was looked at while it lived, and had no node of the claim.
        """
        if not look.problem:
            now = frozenset(look.ending)
            self._ending = {_row(each): self._ending.get(_row(each), now) & now for each in kept}

    def _problem(self, kept: UnreleasedClaim, look: NodeLook) -> str:
        """Return why a process that has a node of a claim open may not have been seen; "" if all were."""
        known = {"", *kept.pods}
        is_ending = any(
            pid in self._ending.get(_row(kept), ())
            or any(pod in known or any(pod in user for user in kept.users) for pod in pods)
            for pid, pods in look.ending.items()
        )
        return look.problem or ("a process that may have it open is ending" if is_ending else "")

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
            log.warning(message, extra=fields(holder=holder, device=", ".join(kept.names), **_name(kept)))

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


def _row(kept: UnreleasedClaim) -> tuple[str, float]:
    return kept.uid, kept.until


def _name(kept: UnreleasedClaim) -> dict[str, str]:
    return {"claim": kept.record().full_name, "claim_uid": kept.uid}
