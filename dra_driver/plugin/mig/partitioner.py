"""Partitioner: makes and destroys partitions for claims, and switches MIG mode; each idempotent by reading back.

In: steps of a plan, and what the ledger recorded of them. Out: partitions, and what to record. Every change of a GPU
happens under that GPU's lock, which also holds between two agents, so the mode can't be switched off between a call's
check and its partition. Each GPU has its own lock; nothing here waits for another GPU.

`owner` in a recorded step is the owner of the partition: this driver ("us") when there was nothing at its place before
the intent was recorded, or an administrator ("other") when there was a partition; that one is used and left in place.
A partition of ours is destroyed only in the boot in which it was made: a reboot removes every partition, and what is
there afterwards belongs to someone else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dra_driver.claims.plan import MigModeStep, MigPartitionStep, cut_of_record, gpu_of_record
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.model.errors import GPU_LOST, HardwareError, Retry
from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.plugin.deadline import Deadline
from dra_driver.plugin.ledger.ledger import Ledger, as_far_as_there_is_room
from dra_driver.plugin.locks import NodeLocks
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

US, OTHER = "us", "other"
ROOM_SECONDS = 6.0  # how long to wait for room that the scheduler counts as free
_POLL_SECONDS = 0.1
_HIDING = ("hardware.gpu-unreadable", "hardware.gpu-not-reported", "hardware.partition-unreadable")
_NO_ROOM = ("hardware.insufficient-resources", "hardware.partition-in-use")


class Partitioner:
    """The MIG partitions of one node.

    `changed` is called with a GPU before and after each change of its MIG mode or partitions.
    """

    def __init__(
        self,
        hardware: Hardware,
        locks: NodeLocks,
        ledger: Ledger,
        boot_id: str,
        *,
        changed: Callable[[GpuFacts], None] = lambda _: None,
    ) -> None:
        self._hardware, self._locks, self._ledger, self._boot_id = hardware, locks, ledger, boot_id
        self._changed = changed
        self._partitionable = hardware if isinstance(hardware, Partitionable) else None

    def look(self, step: MigPartitionStep | MigModeStep) -> Wire:
        """Return the intent to record; the owner is this driver if no partition exists now. Raises: HardwareError."""
        if isinstance(step, MigModeStep):
            return {**step.record(), "bootId": self._boot_id}
        owner = OTHER if self.find(step) else US
        return {**step.record(), "bootId": self._boot_id, "owner": owner, "uuid": ""}

    def make(
        self, step: MigPartitionStep, recorded: Wire, deadline: Deadline, *, note: Callable[[Wire], None]
    ) -> tuple[PartitionFacts, Wire]:
        """Return the partition, making it unless it exists, and what to record of it. Idempotent.

        `note` records an intent durably before anything is made that the ledger does not know of yet.

        Raises: HardwareError, PrepareError("prepare.locked").
        """
        patience = deadline.sooner(ROOM_SECONDS)
        recorded = {**recorded, **step.record()}  # a step recovered from a CDI file lacks the partition's place
        intent = {**recorded, "bootId": self._boot_id, "owner": US, "uuid": ""}
        while True:
            with self._hold(step.gpu, deadline):
                found = self.find(step)
                if found is not None:
                    return found, {**recorded, **self._judge(recorded, found)}
                if intent != recorded:
                    note(intent)
                    recorded = intent
                self._changed(step.gpu)
                try:
                    made = self._create(step, deadline)
                except HardwareError as error:  # wait, with the lock free, for room that is being released
                    if error.code not in _NO_ROOM or patience.remaining() <= _POLL_SECONDS:
                        raise
                else:
                    self._changed(step.gpu)
                    log.info("partition made", extra=fields(device=step.device, status=made.uuid))
                    return made, {**intent, "uuid": made.uuid}
            time.sleep(_POLL_SECONDS)

    def find(self, step: MigPartitionStep) -> PartitionFacts | None:
        """Return the partition if it exists now. Raises: HardwareError."""
        return self._find(step.gpu, step.cut.profile.gi_profile_id, step.cut.start)

    def unmake(self, uid: str, recorded: Wire, deadline: Deadline) -> None:
        """Destroy a recorded partition if it is ours, and switch MIG mode off if it was our last one on the GPU.

        Idempotent.

        A lost GPU has no partitions. Raises: HardwareError, PrepareError("prepare.locked").
        """
        if recorded.get("owner") != US or recorded.get("bootId") != self._boot_id:
            return
        place = _place_of(recorded) if recorded.get("gpu") else self._locate(recorded["uuid"])
        if place is None:
            return
        gpu, profile_id, start = place
        try:
            with self._hold(gpu, deadline):
                left, port = deadline.remaining(), self._port(gpu)
                found = None if recorded["uuid"] else self._find(gpu, profile_id, start)
                mig_uuid = found.uuid if found else recorded["uuid"]
                self._changed(gpu)
                port.destroy_partition(gpu, mig_uuid, left, placement=(profile_id, start))
                self._changed(gpu)
                self._switch_off_if_unused(gpu, uid, deadline)
        except HardwareError as error:
            if error.code != GPU_LOST:
                raise
            log.warning(
                "GPU lost with a partition that this driver made", extra=fields(device=recorded["key"], err=str(error))
            )
        else:
            log.info("partition destroyed", extra=fields(device=recorded["key"], claim_uid=uid))

    def make_whole(
        self, step: MigModeStep, recorded: Wire, deadline: Deadline, *, note: Callable[[Wire], None]
    ) -> Wire:
        """Switch MIG mode off, and return what to record of it: whether to switch it on again afterwards. Idempotent.

        That is decided now, because the mode that the scan saw may have been on for a partition of ours that is gone
        since. `note` records it durably before the switch.

        Raises: HardwareError, also while the GPU has a partition.
        """
        with self._hold(step.gpu, deadline):
            address = step.gpu.pci_address
            is_ours = address in self._ledger.modes(self._boot_id)
            if self._port(step.gpu).mig_mode(step.gpu, deadline.remaining()):
                if not is_ours and not recorded.get("restore"):
                    recorded = {**recorded, "restore": True}
                    note(recorded)
                self._switch(step.gpu, deadline, enabled=False)
            if is_ours:
                self._ledger.set_mode(address, None)
        return recorded

    def restore(self, recorded: Wire, deadline: Deadline) -> None:
        """Switch MIG mode on again where an administrator had it on. A failure is logged and otherwise ignored."""
        if not recorded.get("restore") or recorded.get("bootId") != self._boot_id:
            return
        gpu = gpu_of_record(recorded["gpu"])
        try:
            with self._hold(gpu, deadline):
                self._switch(gpu, deadline, enabled=True)
        except HardwareError as error:
            log.warning("MIG mode not restored", extra=fields(device=gpu.pci_address, err=str(error)))

    def settle(self, gpu: GpuFacts, deadline: Deadline) -> None:
        """Switch MIG mode off where it is on only for partitions of ours that are all gone. Raises: DriverError."""
        with self._hold(gpu, deadline):
            self._switch_off_if_unused(gpu, "", deadline)

    # The methods below run under the GPU's lock

    def _create(self, step: MigPartitionStep, deadline: Deadline) -> PartitionFacts:
        gpu, cut, port = step.gpu, step.cut, self._port(step.gpu)
        if not gpu.mig_enabled and gpu.pci_address not in self._ledger.modes(self._boot_id):
            self._switch_on(gpu, deadline)
        try:
            return port.create_partition(gpu, cut.profile, cut.start, deadline.remaining())
        except HardwareError as error:  # the mode was on when it was last read
            if error.code != "hardware.mig-off":
                raise
        self._switch_on(gpu, deadline)
        return port.create_partition(gpu, cut.profile, cut.start, deadline.remaining())

    def _switch_on(self, gpu: GpuFacts, deadline: Deadline) -> None:
        """Switch MIG mode on, recording it first, so that after a crash it is known that this driver did it."""
        self._ledger.set_mode(gpu.pci_address, self._boot_id)
        self._switch(gpu, deadline, enabled=True)

    def _judge(self, recorded: Wire, found: PartitionFacts) -> Wire:
        """Return what to record of an existing partition: it is ours only if this record made it in this boot."""
        is_ours = recorded.get("owner") == US and recorded.get("bootId") == self._boot_id
        if is_ours and recorded.get("uuid") == found.uuid:
            return {}
        return {"bootId": self._boot_id, "owner": OTHER, "uuid": found.uuid}

    def _switch_off_if_unused(self, gpu: GpuFacts, uid: str, deadline: Deadline) -> None:
        if gpu.pci_address not in self._ledger.modes(self._boot_id):
            return
        if self._ledger.is_occupied(gpu_name(gpu.pci_address), other_than=uid):
            return
        if self._port(gpu).partitions_now(gpu):
            return
        try:
            self._switch(gpu, deadline, enabled=False)
        except HardwareError as error:  # the reaper tries again, and so does a claim of the whole GPU
            log.warning("MIG mode stays on", extra=fields(device=gpu.pci_address, code=error.code, err=str(error)))
        else:
            with as_far_as_there_is_room("forget whose MIG mode it was"):
                self._ledger.set_mode(gpu.pci_address, None)

    def _switch(self, gpu: GpuFacts, deadline: Deadline, *, enabled: bool) -> None:
        self._changed(gpu)
        self._port(gpu).set_mig_mode(gpu, enabled, deadline.remaining())
        log.info("MIG mode switched", extra=fields(device=gpu.pci_address, status="on" if enabled else "off"))
        self._changed(gpu)

    def _find(self, gpu: GpuFacts, profile_id: int, start: int) -> PartitionFacts | None:
        now = self._port(gpu).partitions_now(gpu)
        return next((p for p in now if (p.gi_profile_id, p.start) == (profile_id, start)), None)

    def _locate(self, uuid: str) -> tuple[GpuFacts, int, int] | None:
        """Find a partition by its UUID alone. Raises: HardwareError while a GPU that can't be read may have it."""
        facts = self._hardware.discover()
        for gpu in facts.gpus:
            for partition in gpu.partitions:
                if partition.uuid == uuid:
                    return gpu, partition.gi_profile_id, partition.start
        hiding = [p for p in facts.problems if p.code in _HIDING]
        if facts.waiting_for or hiding:
            why = facts.waiting_for or "; ".join(p.message for p in hiding)
            raise HardwareError("not-answering", f"cannot find out where partition {uuid} is: {why}", retry=Retry.LATER)
        return None

    def _port(self, gpu: GpuFacts) -> Partitionable:
        if self._partitionable is None:
            raise HardwareError(
                "no-mig", f"GPU {gpu.pci_address} can't be partitioned by this agent", retry=Retry.LATER
            )
        return self._partitionable

    @contextmanager
    def _hold(self, gpu: GpuFacts, deadline: Deadline) -> Iterator[None]:
        with self._locks.hold([gpu_lock(gpu.pci_address)], deadline):
            yield


def _place_of(recorded: Wire) -> tuple[GpuFacts, int, int]:
    cut = cut_of_record(recorded)
    return gpu_of_record(recorded["gpu"]), cut.profile.gi_profile_id, cut.start


def gpu_lock(pci_address: str) -> str:
    """Return the name of a GPU's lock.

    It is taken after the locks of claims and devices, and never together with another.
    """
    return f"gpu/{pci_address}"
