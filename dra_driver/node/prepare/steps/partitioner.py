"""Partitioner: makes and destroys partitions for claims. Both are idempotent, because the GPU is read first.

In: steps of a plan, and their records in the ledger. Out: partitions, and records. Every change of a GPU happens under
that GPU's lock (`mig_modes`).

`owner` in a recorded step is the owner of the partition: this driver if the placement was empty before the intent was
recorded, or an administrator if there was a partition, which is then used and never destroyed. A partition of ours is
destroyed only in the boot in which it was made: a reboot removes every partition, and one that is there afterwards was
made by someone else.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from dataclasses import replace

from dra_driver.base.errors import GPU_LOST, HardwareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import CreatedPartition, GpuFacts, PartitionFacts, PlacementFacts
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.node.claims.plan import MigModeStep, MigPartitionStep
from dra_driver.node.ledger.access import tolerate_full_disk
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.ledger_file import ModeEnd
from dra_driver.node.ledger.locks import NodeLocks, gpu_lock
from dra_driver.node.ledger.recorded_steps import (
    OTHER,
    US,
    GpuReference,
    RecordedMode,
    RecordedPartition,
    RecordedSharing,
)
from dra_driver.node.prepare.steps.effects import MadePartition, StepPerformer, StepRun, UndoRun
from dra_driver.node.slices.scanner import OwnChanges

# MIG modes: switches the MIG mode of a node's GPUs off for claims of whole GPUs, and on for partitions.

log = logging.getLogger(__name__)


class MigModes(StepPerformer[MigModeStep, RecordedMode]):
    """The MIG mode of one node's GPUs.

    Each change of a GPU's MIG mode or partitions is made within `own_changes.change`.
    """

    kind = MigModeStep.kind

    def __init__(
        self,
        hardware: Hardware,
        locks: NodeLocks,
        ledger: Ledger,
        boot_id: str,
        *,
        own_changes: OwnChanges,
    ) -> None:
        self._locks, self._ledger, self._boot_id = locks, ledger, boot_id
        self.own_changes = own_changes
        self._switched_on: set[str] = set()  # the PCI addresses of GPUs whose MIG mode this process switched on
        self._partitionable = hardware if isinstance(hardware, Partitionable) else None

    def intent(self, step: MigModeStep) -> RecordedMode:
        """Return the record of a GPU that a claim is to use as a whole."""
        return RecordedMode(GpuReference.of(step.gpu))

    def inspect(self, step: MigModeStep, _deadline: Deadline) -> RecordedMode:
        """Return the intent, with the boot in which it is recorded."""
        return replace(self.intent(step), boot_id=self._boot_id)

    def perform(self, step: MigModeStep, recorded: RecordedMode, run: StepRun) -> RecordedMode:
        """Switch MIG mode off, and record whether it has to be switched on again afterwards. Idempotent.

        That is decided now: when the hardware was scanned, the mode may have been on for a partition of ours that has
        been destroyed since. Raises: HardwareError, also if the GPU has a partition.
        """
        with self.hold(step.gpu, run.deadline):
            address = step.gpu.pci_address
            is_ours = self.is_ours(step.gpu)
            if self.port(step.gpu).mig_mode(step.gpu, run.deadline.remaining()):
                if not is_ours and not recorded.restore:
                    recorded = replace(recorded, restore=True)
                    run.record(recorded)
                self._switch(step.gpu, run.deadline, enabled=False)
            if is_ours:
                self._switched_on.discard(address)
                self._ledger.set_mode(address, None)
        return recorded

    def undo(self, recorded: RecordedMode, undoing: UndoRun) -> None:
        """Switch MIG mode on again if an administrator had switched it on. A failure is only logged."""
        if not recorded.restore or recorded.boot_id != self._boot_id:
            return
        gpu = recorded.gpu.facts()
        try:
            with self.hold(gpu, undoing.deadline):
                self._switch(gpu, undoing.deadline, enabled=True)
        except HardwareError as error:
            log.warning("MIG mode not restored", extra=fields(device=gpu.pci_address, err=str(error)))

    def settle(self, gpu: GpuFacts, deadline: Deadline) -> None:
        """Switch MIG mode off if it is on only for partitions of ours that are all gone. Raises: DriverError."""
        with self.hold(gpu, deadline):
            if self.switch_off_unneeded(gpu, "", deadline):
                self._ledger.set_mode(gpu.pci_address, None)

    def hold(self, gpu: GpuFacts, deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context that holds the GPU's lock. Entering it raises: PrepareError("prepare.locked")."""
        return self._locks.hold([gpu_lock(gpu.pci_address)], deadline)

    def port(self, gpu: GpuFacts) -> Partitionable:
        """Return the hardware, which must be able to partition GPUs. Raises: HardwareError("hardware.no-mig")."""
        if self._partitionable is None:
            raise HardwareError(
                "no-mig", f"GPU {gpu.pci_address} can't be partitioned by this agent", retry=Retry.LATER
            )
        return self._partitionable

    # The callers of the methods below hold the GPU's lock.

    def is_ours(self, gpu: GpuFacts) -> bool:
        """Return whether this driver has switched the GPU's MIG mode on in this boot."""
        return gpu.pci_address in self._ledger.modes(self._boot_id)

    def own(self, gpu: GpuFacts) -> None:
        """Record that this driver is about to switch MIG mode on, so that this is known after a crash."""
        self._ledger.set_mode(gpu.pci_address, self._boot_id)

    def switched_on(self, gpu: GpuFacts) -> None:
        """Remember that this process has switched MIG mode on; the ledger has recorded it already."""
        self._switched_on.add(gpu.pci_address)

    def found_on(self, gpu: GpuFacts, uid: str) -> None:
        """Remove the record that MIG mode is ours, because someone else has switched it on first.

        The record stays if this process switched the mode on for an earlier claim, or if a claim other than `uid` has a
        part of the GPU: another agent on this node may have switched the mode on for that claim.
        """
        if gpu.pci_address in self._switched_on:
            return
        if self._ledger.mode_end(gpu.pci_address, self._boot_id, other_than=uid) is not ModeEnd.NOT_YET:
            self._ledger.set_mode(gpu.pci_address, None)

    def end_of(self, pci_address: str, uid: str) -> ModeEnd:
        """Return whether a GPU's MIG mode is ours and may end with the claim `uid`. No lock is needed."""
        return self._ledger.mode_end(pci_address, self._boot_id, other_than=uid)

    def switched_off(self, gpu: GpuFacts, uid: str, end: ModeEnd) -> None:
        """Remember that MIG mode, which was ours, is off. The caller has to record that with the claim `uid`."""
        self._switched_on.discard(gpu.pci_address)
        if end is ModeEnd.BESIDE_OTHERS:
            with tolerate_full_disk("record that a MIG mode is off"):
                self._ledger.remove_ended_mode_record(gpu.pci_address, uid)

    def switch_off_unneeded(self, gpu: GpuFacts, uid: str, deadline: Deadline) -> bool:
        """Switch MIG mode off if it is ours and neither a partition nor a claim other than `uid` needs it.

        Return whether it is off now. If so, the caller has to record that it is not ours any more.
        """
        end = self.end_of(gpu.pci_address, uid)
        if end is ModeEnd.NOT_YET:
            return False
        try:
            with self.own_changes.change(gpu):
                self.port(gpu).set_mig_mode(gpu, False, deadline.remaining())
        except HardwareError as error:  # the reaper tries again, and so does a claim for the whole GPU
            if error.code != "hardware.partition-in-use":  # with this error, the hardware reports that it is needed
                log.warning("MIG mode stays on", extra=fields(device=gpu.pci_address, code=error.code, err=str(error)))
            return False
        self.switched_off(gpu, uid, end)
        return True

    def _switch(self, gpu: GpuFacts, deadline: Deadline, *, enabled: bool) -> None:
        with self.own_changes.change(gpu):
            self.port(gpu).set_mig_mode(gpu, enabled, deadline.remaining())
        log.info("MIG mode switched", extra=fields(device=gpu.pci_address, status="on" if enabled else "off"))


ROOM_SECONDS = 6.0  # how long to wait until memory slices that the scheduler counts as free are free
_POLL_SECONDS = 0.1
_HIDING = ("hardware.gpu-unreadable", "hardware.gpu-not-reported", "hardware.partition-unreadable")
_OVERLAP = "hardware.insufficient-resources"
_NO_ROOM = (_OVERLAP, "hardware.partition-in-use")


class Partitioner(StepPerformer[MigPartitionStep, RecordedPartition]):
    """The MIG partitions of one node."""

    kind = MigPartitionStep.kind

    def __init__(self, hardware: Hardware, modes: MigModes, boot_id: str) -> None:
        self._hardware, self._modes, self._boot_id = hardware, modes, boot_id

    def intent(self, step: MigPartitionStep) -> RecordedPartition:
        """Return the record of a partition before the hardware has been asked."""
        return RecordedPartition(step.device, GpuReference.of(step.gpu), step.placement.profile, step.placement.start)

    def inspect(self, step: MigPartitionStep, _deadline: Deadline) -> RecordedPartition:
        """Return the intent with the owner: this driver, if the placement is empty now. Raises: HardwareError."""
        now, profile, start = self._placement_now(step), step.placement.profile, step.placement.start
        gpu, owner = GpuReference.of(step.gpu), OTHER if now.partition else US
        return RecordedPartition(
            step.device, gpu, profile, start, self._boot_id, owner, "", switches_mode=not now.mig_enabled
        )

    def perform(self, step: MigPartitionStep, recorded: RecordedPartition, run: StepRun) -> RecordedPartition:
        """Make the partition unless it exists. Idempotent.

        Raises: HardwareError, PrepareError("prepare.locked").
        """
        patience = run.deadline.sooner(ROOM_SECONDS)
        # The step was recovered from a CDI file, or the GPU's minor has changed.
        if recorded.placement is None or recorded.gpu != GpuReference.of(step.gpu):
            planned = self.intent(step)
            recorded = replace(recorded, gpu=planned.gpu, profile=planned.profile, start=planned.start)
        while (made := self._find_or_make(step, recorded, run, patience)) is None:
            recorded = self._intended(recorded)
            time.sleep(_POLL_SECONDS)
        run.partitions[step.device] = made
        return made.recorded

    def find(self, step: MigPartitionStep, recorded: RecordedPartition, run: StepRun) -> None:
        """Find the partition for the claim's file. Raises: HardwareError("hardware.partition-missing")."""
        partition = self._placement_now(step).partition
        if partition is None:
            raise HardwareError("partition-missing", f"partition {step.device} is gone", retry=Retry.LATER)
        run.partitions[step.device] = MadePartition(step.gpu, partition, recorded)

    def needs_mark(self, recorded: RecordedPartition, undoing: UndoRun) -> bool:
        """Return whether other claims have parts of the GPU: the last of them to be undone switches MIG mode off."""
        if recorded.gpu is None:
            return True
        address = recorded.gpu.pci_address
        if address in undoing.alone_on:
            return False
        if self._modes.end_of(address, undoing.uid) is not ModeEnd.ALONE:
            return True
        undoing.alone_on.add(address)
        return False

    def undo(self, recorded: RecordedPartition, undoing: UndoRun) -> None:
        """Destroy a recorded partition if it is ours, and switch MIG mode off if it was our last one on the GPU.

        Idempotent. A lost GPU counts as having no partitions. Raises: HardwareError, PrepareError("prepare.locked").
        """
        if (RecordedSharing.kind, recorded.device) in undoing.failed:
            return  # an MPS daemon still runs on it; the next call ends the daemon first
        if not recorded.is_ours(self._boot_id):
            return
        found = _placement_of(recorded) or self._locate(recorded.uuid or "")
        if found is None:
            return
        gpu, placement = found
        try:
            self._destroy(gpu, placement, recorded, undoing)
        except HardwareError as error:
            if error.code != GPU_LOST:
                raise
            log.warning(
                "GPU lost with a partition that this driver made", extra=fields(device=recorded.device, err=str(error))
            )
        else:
            done = "partition destroyed"
            if gpu.pci_address in undoing.modes_off:
                done += " and MIG mode switched off"
            log.info(done, extra=fields(device=recorded.device, claim_uid=undoing.uid))

    def _destroy(
        self, gpu: GpuFacts, placement: tuple[int, int], recorded: RecordedPartition, undoing: UndoRun
    ) -> None:
        deadline = undoing.deadline
        with self._modes.hold(gpu, deadline):
            left, port, uid = deadline.remaining(), self._modes.port(gpu), undoing.uid
            uuid = recorded.uuid or self._uuid_at(gpu, placement)
            is_alone = gpu.pci_address in undoing.alone_on
            end = ModeEnd.ALONE if is_alone else self._modes.end_of(gpu.pci_address, uid)
            may_end = end is not ModeEnd.NOT_YET
            with self._modes.own_changes.change(gpu):
                is_off = port.destroy_partition(gpu, uuid, left, placement=placement, switches_off=may_end)
            if is_off:
                self._modes.switched_off(gpu, uid, end)
            if is_off or (may_end and self._modes.switch_off_unneeded(gpu, uid, deadline)):
                undoing.modes_off.add(gpu.pci_address)

    def _find_or_make(
        self, step: MigPartitionStep, recorded: RecordedPartition, run: StepRun, patience: Deadline
    ) -> MadePartition | None:
        """Return the partition, after making it if it does not exist; None if there may soon be room for it.

        A partition that exists as recorded is found without the GPU's lock: only the claim's own calls destroy it, and
        this call has the claim's lock.
        """
        if recorded.uuid and recorded.boot_id == self._boot_id:
            existing = self._placement_now(step).partition
            if existing is not None and existing.uuid == recorded.uuid:
                return MadePartition(step.gpu, existing, recorded)
        with self._modes.hold(step.gpu, run.deadline):
            intent = self._intended(recorded)
            if intent is not recorded:  # otherwise nothing was made yet, and `_create` finds a partition that exists
                found = self._placement_now(step).partition
                if found is not None:
                    return MadePartition(step.gpu, found, self._record_of_found(recorded, found))
                run.record(intent)
            made = self._create_if_room(step, intent, run, patience)
            if made is None:
                return None
            if not made.is_new:
                return MadePartition(step.gpu, made.facts, self._record_of_found(intent, made.facts))
        done = "MIG mode switched on and partition made" if made.has_switched else "partition made"
        log.info(done, extra=fields(device=step.device, status=made.facts.uuid))
        return MadePartition(step.gpu, made.facts, intent.as_made(made.facts.uuid))

    def _intended(self, recorded: RecordedPartition) -> RecordedPartition:
        if recorded.is_ours(self._boot_id) and recorded.uuid == "":
            return recorded
        return replace(recorded, boot_id=self._boot_id, owner=US, uuid="", switches_mode=False)

    # The callers of the methods below hold the GPU's lock.

    def _create_if_room(
        self, step: MigPartitionStep, intent: RecordedPartition, run: StepRun, patience: Deadline
    ) -> CreatedPartition | None:
        """Create the partition; None if the caller has time to wait, without the lock, for room that is released."""
        try:
            with self._modes.own_changes.change(step.gpu):
                return self._create(step, intent, run)
        except HardwareError as error:
            if error.code not in _NO_ROOM or patience.remaining() <= _POLL_SECONDS:
                if error.code == _OVERLAP and intent.switches_mode:  # an administrator made partitions meanwhile
                    self._modes.found_on(step.gpu, run.uid)
                raise
            return None

    def _create(self, step: MigPartitionStep, intent: RecordedPartition, run: StepRun) -> CreatedPartition:
        """Create the partition. If that needs MIG mode switched on, the ledger records this first.

        If the mode was off when the intent was recorded, it was recorded then; another program may have switched the
        mode since.
        """
        gpu, placement, port, deadline = step.gpu, step.placement, self._modes.port(step.gpu), run.deadline
        if not intent.switches_mode:
            try:
                return port.create_partition(gpu, placement.profile, placement.start, deadline.remaining())
            except HardwareError as error:
                if error.code != "hardware.mig-off":
                    raise
            self._modes.own(gpu)
        made = port.create_partition(gpu, placement.profile, placement.start, deadline.remaining(), switches_on=True)
        if made.has_switched:
            self._modes.switched_on(gpu)
        else:
            self._modes.found_on(gpu, run.uid)
        return made

    def _record_of_found(self, recorded: RecordedPartition, found: PartitionFacts) -> RecordedPartition:
        """Return the record of an existing partition; it is ours only if it was made for this record in this boot."""
        if recorded.is_ours(self._boot_id) and recorded.uuid == found.uuid:
            return recorded
        return replace(recorded, boot_id=self._boot_id, owner=OTHER, uuid=found.uuid)

    def _placement_now(self, step: MigPartitionStep) -> PlacementFacts:
        """Return what is at the partition's placement now. Raises: HardwareError."""
        return self._modes.port(step.gpu).placement_now(step.gpu, step.placement.profile, step.placement.start)

    def _uuid_at(self, gpu: GpuFacts, placement: tuple[int, int]) -> str:
        """Return the UUID of the partition at a placement; "" if there is none. Raises: HardwareError."""
        now = self._modes.port(gpu).partitions_now(gpu)
        return next((p.uuid for p in now if (p.gi_profile_id, p.start) == placement), "")

    def _locate(self, uuid: str) -> tuple[GpuFacts, tuple[int, int]] | None:
        """Find a partition by its UUID alone, and return its GPU and placement, or None.

        Raises: HardwareError if a GPU that can't be read may have it.
        """
        facts = self._hardware.discover()
        for gpu in facts.gpus:
            for partition in gpu.partitions:
                if partition.uuid == uuid:
                    return gpu, (partition.gi_profile_id, partition.start)
        hiding = [p for p in facts.problems if p.code in _HIDING]
        if facts.waiting_for or hiding:
            why = facts.waiting_for or "; ".join(p.message for p in hiding)
            raise HardwareError(
                "not-answering", f"cannot determine which GPU has partition {uuid}: {why}", retry=Retry.LATER
            )
        return None


def _placement_of(recorded: RecordedPartition) -> tuple[GpuFacts, tuple[int, int]] | None:
    """Return the GPU of a recorded partition, with the profile's id and the start; None if they are not known."""
    if recorded.gpu is None or recorded.profile is None or recorded.start is None:
        return None
    return recorded.gpu.facts(), (recorded.profile.gi_profile_id, recorded.start)
