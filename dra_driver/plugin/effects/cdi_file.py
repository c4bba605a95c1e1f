"""CDI file: the file of a claim is written after everything that it describes was made.

Only this module uses both `claims` (what has to be done) and `cdi` (how a file is written).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.cdi import ids
from dra_driver.cdi.records import record_text
from dra_driver.cdi.spec import render
from dra_driver.cdi.store import CdiStore
from dra_driver.claims.steps.cdi_file import CdiFileStep
from dra_driver.claims.steps.sharing import SharingStep
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.inventory.device import Device
from dra_driver.model.edits import Edits, merge
from dra_driver.model.errors import NODE_MISSING, HardwareError, Retry
from dra_driver.model.fifo_cache import FifoCache
from dra_driver.plugin.deadline import NODE_SECONDS, Deadline
from dra_driver.plugin.effects.device_metadata import DeviceMetadata
from dra_driver.plugin.effects.file_records import partition_env, sharing_env
from dra_driver.plugin.effects.sharing.holders import with_sharing
from dra_driver.plugin.ledger.recorded_steps import RecordedFile, RecordedPartition, RecordedSharing
from dra_driver.plugin.steps.performer import StepPerformer
from dra_driver.plugin.steps.step_run import MadePartition, StepRun, UndoRun

MAX_DOCUMENTS = 16  # as many as a node has GPUs; each has 1 to 15 KiB
_POLL_SECONDS = 0.05

# By name in the file: the edits of a device that another step made, and its record if it is a partition.
_Made = dict[str, tuple[Edits, RecordedPartition | None]]
_Document = tuple[bytes, bytes]  # a document, and the records beside it


@dataclass(frozen=True, slots=True)
class DriverCdiNames:
    """The CDI names of one driver, in the form that plans use."""

    driver: str

    @property
    def kind(self) -> str:
        """The CDI kind of all devices that this driver prepares."""
        return ids.kind(self.driver)

    def file(self, uid: str) -> str:
        """Return the name of a claim's CDI file."""
        return ids.claim_file(self.driver, uid)

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the name of a device within that file."""
        return ids.device_name(uid, device, share_id)

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the fully qualified id of that device."""
        return ids.device_id(self.driver, uid, device, share_id)


class CdiFiles(StepPerformer[CdiFileStep, RecordedFile]):
    """The CDI files of one node's claims."""

    kind = CdiFileStep.kind

    def __init__(self, store: CdiStore, hardware: Hardware, metadata: DeviceMetadata) -> None:
        self._store, self._hardware, self._metadata = store, hardware, metadata
        self._documents: FifoCache[str, tuple[CdiFileStep, _Made, _Document]] = FifoCache(MAX_DOCUMENTS)

    def intent(self, step: CdiFileStep) -> RecordedFile:
        """Return the record of a file: its name."""
        return RecordedFile(step.file)

    def inspect(self, step: CdiFileStep, _deadline: Deadline) -> RecordedFile:
        """Return the intent, if the standing partitions that the file describes still exist.

        The claim was planned before its devices' locks were taken, and they may have been destroyed between.
        Raises: HardwareError("hardware.partition-missing").
        """
        for device in step.standing:
            self._require_standing(device)
        return self.intent(step)

    def perform(self, step: CdiFileStep, recorded: RecordedFile, run: StepRun) -> RecordedFile:
        """Write the file and the metadata files that it mounts, unless they already have this content.

        Raises: HardwareError, PrepareError.
        """
        self._write(step, run, run.deadline.sooner(NODE_SECONDS))
        return recorded

    def find(self, step: CdiFileStep, _recorded: RecordedFile, run: StepRun) -> None:
        """Write the file again if device nodes or libraries have changed. Raises: HardwareError, PrepareError."""
        self._write(step, run, Deadline.after(0))

    def needs_mark(self, _recorded: RecordedFile, _undoing: UndoRun) -> bool:
        """Return False, because no other claim depends on the file."""
        return False

    def undo(self, recorded: RecordedFile, _undoing: UndoRun) -> None:
        """Remove the file. Raises: PrepareError."""
        self._store.remove(recorded.file)

    def _require_standing(self, device: Device) -> None:
        planned = device.partition
        if planned is None or not isinstance(self._hardware, Partitionable):
            return
        existing = _now_at(self._hardware, device.gpu, planned)
        if (planned.uuid, planned.gi_id, planned.ci_id) not in {(now.uuid, now.gi_id, now.ci_id) for now in existing}:
            text = f"partition {device.name} was destroyed while its claim was about to be prepared"
            raise HardwareError("partition-missing", text, retry=Retry.LATER)

    def _write(self, step: CdiFileStep, run: StepRun, patience: Deadline) -> None:
        made = {name: self._made(device, run, patience) for name, device in step.made.items()}
        if step.metadata or run.shared or run.variables:
            document = render(step.cdi_kind, self._edits(step, run, made), step.common)
            records = _records(made, run.shared)
        else:
            document, records = self._kept_document(step, made)
        run.is_file_changed |= self._store.write(step.file, document, records)

    def _kept_document(self, step: CdiFileStep, made: _Made) -> _Document:
        """Return the document of a step with nothing but its devices; repeated calls of a claim have the same ones."""
        kept = self._documents.get(step.file)
        if kept is not None and kept[0] is step and kept[1] == made:
            return kept[2]
        document = render(step.cdi_kind, _devices(step, made), step.common), _records(made, ())
        self._documents.keep(step.file, (step, made, document))
        return document

    def _made(self, device: str, run: StepRun, patience: Deadline) -> tuple[Edits, RecordedPartition | None]:
        """Return the edits of a device that another step made, and its record if it is a partition.

        Raises: HardwareError.
        """
        if device in run.passed:
            return run.passed[device], None
        partition = run.partitions[device]
        return self._edits_of(device, partition, patience), partition.recorded

    def _edits(self, step: CdiFileStep, run: StepRun, made: _Made) -> dict[str, Edits]:
        """Return the edits of the claim's devices, by their name in the file, with what the other steps made.

        Raises: PrepareError.
        """
        edits = _devices(step, made)
        for shared, recorded in run.shared:
            for name in shared.in_file:
                edits[name] = with_sharing(edits[name], shared, recorded, name)
        for names, more in run.variables:
            edits |= {name: merge((edits[name], more)) for name in names if name in edits}
        if step.metadata:
            uuids = {device: partition.facts.uuid for device, partition in run.partitions.items()}
            for name, mount in self._metadata.write(step.metadata, uuids):
                edits[name] = edits[name]._replace(mounts=(*edits[name].mounts, mount))
        return edits

    def _edits_of(self, device: str, partition: MadePartition, patience: Deadline) -> Edits:
        """Return the edits of a partition that was just made, whose device nodes may appear a moment later.

        Raises: HardwareError.
        """
        while True:
            try:
                return self._hardware.device_edits(partition.gpu, partition.facts)
            except HardwareError as error:
                if error.code != NODE_MISSING or patience.has_passed():
                    error.message = f"device {device}: {error.message}"
                    raise
            time.sleep(_POLL_SECONDS)


def _now_at(port: Partitionable, gpu: GpuFacts, planned: PartitionFacts) -> tuple[PartitionFacts, ...]:
    """Return the partitions among which a planned one is if it still exists. Raises: HardwareError."""
    for profile in gpu.mig_profiles:
        if (profile.name, profile.gi_profile_id) == (planned.profile, planned.gi_profile_id):
            found = port.placement_now(gpu, profile, planned.start).partition  # no other placement is read for this
            return (found,) if found else ()
    return port.partitions_now(gpu)  # it is a part of a GPU instance


def _devices(step: CdiFileStep, made: _Made) -> dict[str, Edits]:
    """Return the edits of a claim's devices, by their name in the file."""
    return {**step.devices, **{name: edits for name, (edits, _) in made.items()}}


def _records(made: _Made, shared: Iterable[tuple[SharingStep, RecordedSharing]]) -> bytes:
    """Return what is recorded beside the file, from which a lost ledger is rebuilt: partitions and sharing."""
    entries = {name: partition_env(recorded) for name, (_, recorded) in made.items() if recorded is not None}
    for step, recorded in shared:
        for name in step.in_file:
            entries[name] = (*entries.get(name, ()), *sharing_env(step, recorded.effect))
    return record_text(entries)
