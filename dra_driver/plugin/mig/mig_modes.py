"""MIG modes: switches the MIG mode of a node's GPUs off for claims of whole GPUs, and on for partitions.

In: steps of plans, their records in the ledger, and GPUs that are about to get a partition or have lost their last one.
Every change of a GPU happens under that GPU's lock, which also holds between two agents, so another call can't switch
the mode off between a call's check and its partition. Each GPU has its own lock, so no GPU has to wait for another. A
call that takes a GPU out of MIG mode, or undoes that, holds all the devices of the GPU already (`gpu_holds`).
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import replace

from dra_driver.claims.steps.mig import MigModeStep
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.own_change import OwnChanges
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.model.errors import HardwareError, Retry
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.access import tolerate_full_disk
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.ledger_rows import ModeEnd
from dra_driver.plugin.ledger.recorded_steps import GpuReference, RecordedMode
from dra_driver.plugin.locks import NodeLocks, gpu_lock
from dra_driver.plugin.steps.performer import StepPerformer
from dra_driver.plugin.steps.step_run import StepRun, UndoRun
from dra_driver.telemetry.logs import fields

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
