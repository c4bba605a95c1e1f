"""Repair: corrects what crashes, reloaded GPU drivers and other programs have left behind, beside the kubelet's calls.

It never blocks a call: it waits only briefly, or not at all, for locks that a call holds. What could not be corrected
is logged and tried again in the next run.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from dra_driver.base.errors import DriverError, PrepareError
from dra_driver.base.machine import BUDGET_SECONDS, Deadline
from dra_driver.base.names import gpu_of_device, replicated_name
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.claims.metadata import DeviceMetadata
from dra_driver.node.devices.offering import CurrentInventory
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks, claim_lock, device_lock, with_replicas
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_claim
from dra_driver.node.ledger.recorded_steps import (
    EFFECT_ENV,
    RecordedFile,
    RecordedPartition,
    RecordedSharing,
    partitions_of_env,
    sharing_of_env,
)
from dra_driver.node.neighbours.gone_claims import GoneClaims
from dra_driver.node.prepare.preparer import Planner
from dra_driver.node.prepare.release_watch import ReleaseWatch
from dra_driver.node.prepare.steps.effects import Effects, StepRun, UndoRun
from dra_driver.node.prepare.steps.memory_limiter import LatePods
from dra_driver.node.prepare.steps.partitioner import MigModes
from dra_driver.node.prepare.steps.sharing import SharingHolders
from dra_driver.node.prepare.undo import UNDO_SECONDS, ClaimUndo

# Recovery: records for a lost ledger, read back from the CDI files of prepared claims.

log = logging.getLogger(__name__)

_SHARE = re.compile(r"(.+)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")


class CdiClaimFiles:
    """The CDI files of one driver's claims."""

    def __init__(self, store: CdiStore, driver: str) -> None:
        self._store, self._driver = store, driver

    def recover(self) -> tuple[ClaimRecord, ...]:
        """Return a record for each claim that has a file."""
        return tuple(_records(self._store, self._driver))

    def has(self, uid: str) -> bool:
        """Return whether a claim has a file."""
        return (self._store.root / cdi.claim_file(self._driver, uid)).exists()


def made_partitions(store: CdiStore, file: str, uid: str) -> Iterator[RecordedPartition]:
    """Yield the partitions that were made for a claim, as its CDI file records them: UUID and boot, but no GPU."""
    for entry in _entries(store, file):
        device = str(entry.get("name", "")).removeprefix(f"{uid}-")
        yield from partitions_of_env(device, _env(entry))


def _records(store: CdiStore, driver: str) -> Iterator[ClaimRecord]:
    for file in store.list(cdi.vendor(driver)):
        uid = cdi.claim_uid_of(driver, file)
        if uid is None:
            continue
        claim = AllocatedClaim(uid, "", "", tuple(_devices(store, file, uid)))
        if not claim.devices:
            log.warning("CDI file names no device, so the claim will hold none", extra=fields(file=file, claim_uid=uid))
        yield ClaimRecord(
            uid=uid,
            namespace="",
            name="",
            state=ClaimState.RECOVERED,
            boot_id="",
            allocation=record_of_claim(claim),
            steps=(
                *made_partitions(store, file, uid),
                *_shared(store, file),
                RecordedFile(file),
            ),
        )


def _shared(store: CdiStore, file: str) -> Iterator[RecordedSharing]:
    """Yield the steps that shared devices: one for each device, even if the claim has several shares of it."""
    steps: dict[str, RecordedSharing] = {}
    for entry in _entries(store, file):
        for variable in (text for text in _env(entry) if text.startswith(f"{EFFECT_ENV}=")):
            try:
                step = sharing_of_env(variable)
            except (KeyError, TypeError, ValueError) as exc:
                log.warning(
                    "CDI file has a record of sharing that can't be read", extra=fields(file=file, err=str(exc))
                )
            else:
                steps[step.key] = step
    yield from steps.values()


def _entries(store: CdiStore, file: str) -> Sequence[Mapping[str, Any]]:
    return (store.read(file) or {}).get("devices") or ()


def _env(entry: Mapping[str, Any]) -> Sequence[str]:
    return (entry.get("containerEdits") or {}).get("env") or ()


def _devices(store: CdiStore, file: str, uid: str) -> Iterator[AllocatedDevice]:
    for entry in _entries(store, file):
        name = str(entry.get("name", "")).removeprefix(f"{uid}-")
        share = _SHARE.fullmatch(name)
        yield AllocatedDevice(
            request="", pool="", device=share[1] if share else name, share_id=share[2] if share else None
        )


class Repair:
    """Repairs the claims of one node. Any thread may call any method at any time, and repeat the call."""

    def __init__(
        self,
        boot_id: str,
        driver: str,
        *,
        ledger: Ledger,
        store: CdiStore,
        locks: NodeLocks,
        effects: Effects,
        undo: ClaimUndo,
        gone: GoneClaims,
        planner: Planner,
        modes: MigModes,
        sharing: SharingHolders,
        release_watch: ReleaseWatch,
        late_pods: LatePods,
        inventory: CurrentInventory,
        metadata: DeviceMetadata,
    ) -> None:
        self._boot_id, self._driver, self._store, self._locks = boot_id, driver, store, locks
        self.ledger, self._effects, self._undo, self._gone = ledger, effects, undo, gone
        self._planner, self._modes, self._sharing, self._inventory = planner, modes, sharing, inventory
        self._release_watch, self._late_pods, self._metadata = release_watch, late_pods, metadata

    def run(self) -> int:
        """Undo what a crash left half-done, and remove its temporary CDI files.

        Return how many claims were repaired. Raises: LedgerError.
        """
        repaired = self.ledger.settle()
        with suppress(PrepareError):  # the calls that need the folder will report that it is read-only
            self._store.sweep(cdi.claim_file(self._driver, "").removesuffix(".json"))
        for uid in () if self.ledger.is_read_only else self.ledger.unfinished():
            try:
                repaired += self._undo.undo_unfinished(uid)
            except DriverError as error:
                log.warning("half-done claim not undone", extra=fields(claim_uid=uid, code=error.code, err=str(error)))
        self._sweep_metadata()
        self._late_pods.resume()
        self._release_watch.watch()
        return repaired

    def refresh_cdi(self) -> int:
        """Rewrite the CDI files of this boot's prepared claims if the device nodes or files in them have changed.

        Return how many files were rewritten. Raises: LedgerError.
        """
        if self.ledger.is_read_only:
            return 0
        changed = 0
        for stale in self.ledger.records():
            if stale.state != ClaimState.PREPARED or stale.boot_id != self._boot_id:
                continue
            try:
                changed += self._refresh(stale.uid)
            except DriverError as error:
                log.warning(
                    "CDI file not refreshed", extra=fields(claim=stale.full_name, code=error.code, err=str(error))
                )
        if changed:
            log.info("CDI files of prepared claims rewritten", extra=fields(count=changed))
        return changed

    def evict(self, uid: str) -> bool:
        """Unprepare a claim if it is abandoned, and return whether it was. Raises: DriverError."""
        return self._undo.evict(uid)

    def remove_orphan(self, uid: str) -> bool:
        """Remove the CDI file of a claim that the ledger does not know, and the partitions that the file lists.

        Return whether a file was removed. Raises: DriverError; the file then stays, because nothing else records the
        partitions.
        """
        with self._locks.hold([claim_lock(uid)], Deadline.after(0)):
            if self.ledger.get(uid) is not None:
                return False
            file = cdi.claim_file(self._driver, uid)
            made = tuple(made_partitions(self._store, file, uid))
            if made and self._gone.exists(uid):
                return False  # a container may be using them
            with self._hold(made):
                if self._are_held(made):
                    return False  # they were offered as an administrator's, and other claims have them now
                for gpu in self._effects.undo(made, UndoRun(uid, Deadline.after(UNDO_SECONDS))):
                    self.ledger.set_mode(gpu, None)
                return self._store.remove(file)

    def _hold(self, made: Collection[RecordedPartition]) -> AbstractContextManager[None]:
        """Return a context that holds these partitions and their replicas, unless a call works on them now."""
        names = (name for partition in made for name in with_replicas(partition.device))
        return self._locks.hold(map(device_lock, names), Deadline.after(0))

    def _are_held(self, made: Collection[RecordedPartition]) -> bool:
        """Return whether a claim holds one of these partitions, or a replica of it. Raises: LedgerError."""
        names = {partition.device for partition in made}
        holders = self.ledger.holders({gpu_of_device(name) for name in names})
        return any((replicated_name(holder) or holder) in names for holder in holders)

    def settle_modes(self) -> None:
        """Switch off the MIG modes that this driver switched on for partitions which are all gone by now."""
        ours: Collection[str] = self.ledger.modes(self._boot_id)
        for gpu in {
            d.gpu.pci_address: d.gpu for d in self._inventory.current.devices if d.gpu.pci_address in ours
        }.values():
            try:
                self._modes.settle(gpu, Deadline.after(UNDO_SECONDS))
            except DriverError as error:
                log.warning("MIG mode not switched off", extra=fields(device=gpu.pci_address, err=str(error)))

    def settle_sharing(self) -> int:
        """Undo sharing that no claim holds any more, and end MPS daemons that belong to no effect.

        Return how many effects were undone and daemons ended.
        """
        return self._sharing.tidy()

    def _sweep_metadata(self) -> None:
        for uid in self._metadata.owners():
            if self.ledger.get(uid) is not None:
                continue
            # An error means that a call holds the claim's lock.
            with suppress(DriverError), self._locks.hold([claim_lock(uid)], Deadline.after(0)):
                if self.ledger.get(uid) is None:
                    self._metadata.remove(uid)

    def _refresh(self, uid: str) -> bool:
        """Rewrite one claim's file, and return whether it had to change. Raises: DriverError."""
        deadline = Deadline.after(BUDGET_SECONDS)
        with self._locks.hold([claim_lock(uid)], deadline):
            record, held = self.ledger.get_with_holds(uid)
            if record is None or record.state != ClaimState.PREPARED:
                return False
            if not record.was_lost and self._inventory.current.on_lost_gpus(record.owned_names()):
                self.ledger.set_allocation(uid, record.with_loss())
            plan = self._planner.plan(record.claim())
            self.ledger.hold(uid, plan.occupied, held)
            run = StepRun(uid, self._effects.carried_over(plan.steps, record.steps), self.ledger, deadline)
            self._effects.refresh(plan.steps, run)
            return run.is_file_changed


# Reaper: removes what no claim owns any more.

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
        for file in self._store.list(cdi.vendor(self._driver)):
            uid = cdi.claim_uid_of(self._driver, file)
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
