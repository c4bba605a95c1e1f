"""CDI file: the file of a claim is written after everything that it describes was made.

Only this module uses both `claims` (what has to be done) and `cdi` (how a file is written).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.edits import Edits, Mount, merge
from dra_driver.base.errors import NODE_MISSING, HardwareError, PrepareError, Retry
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import TimeSlicingSettings, Wire, json_text
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, Partitionable
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore, record_text, render
from dra_driver.node.claims.claim_on_node import NODE_SECONDS, Deadline
from dra_driver.node.claims.metadata import RequestMetadata, generation_of
from dra_driver.node.claims.plan import CdiFileStep
from dra_driver.node.claims.sharing_steps import SharingStep
from dra_driver.node.devices.describing import Device
from dra_driver.node.ledger.recorded_steps import (
    EFFECT,
    US,
    DeviceEffect,
    RecordedFile,
    RecordedPartition,
    RecordedSharing,
)
from dra_driver.node.prepare.steps.effects import MadePartition, StepPerformer, StepRun, UndoRun
from dra_driver.node.prepare.steps.sharing import with_sharing

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05

# By name in the file: the edits of a device that another step made, and its record if it is a partition.
_Made = dict[str, tuple[Edits, RecordedPartition | None]]


class CdiFiles(StepPerformer[CdiFileStep, RecordedFile]):
    """The CDI files of one node's claims."""

    kind = CdiFileStep.kind

    def __init__(self, store: CdiStore, hardware: Hardware, metadata: DeviceMetadata) -> None:
        self._store, self._hardware, self._metadata = store, hardware, metadata

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
        document = render(step.cdi_kind, self._edits(step, run, made), step.common)
        run.is_file_changed |= self._store.write(step.file, document, _records(made, run.shared))

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
        edits = {**step.devices, **{name: own for name, (own, _) in made.items()}}
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


def _records(made: _Made, shared: Iterable[tuple[SharingStep, RecordedSharing]]) -> bytes:
    """Return what is recorded beside the file, from which a lost ledger is rebuilt: partitions and sharing."""
    entries = {name: partition_env(recorded) for name, (_, recorded) in made.items() if recorded is not None}
    for step, recorded in shared:
        for name in step.in_file:
            entries[name] = (*entries.get(name, ()), *sharing_env(step, recorded.effect))
    return record_text(entries)


# The CDI names that plans use.


@dataclass(frozen=True, slots=True)
class DriverCdiNames:
    """The CDI names of one driver, in the form that plans use."""

    driver: str

    @property
    def kind(self) -> str:
        """The CDI kind of all devices that this driver prepares."""
        return cdi.kind(self.driver)

    def file(self, uid: str) -> str:
        """Return the name of a claim's CDI file."""
        return cdi.claim_file(self.driver, uid)

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the name of a device within that file."""
        return cdi.device_name(uid, device, share_id)

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the fully qualified id of that device."""
        return cdi.device_id(self.driver, uid, device, share_id)


# Device metadata: files in which containers find facts about their devices, and the mounts that show them there.

_MAX_BYTES = 256 * 1024  # 32 devices with 32 attributes each need less than half of this, in both versions
_OPTIONS = ("ro", "bind", "nosuid", "nodev", "noexec")


class DeviceMetadata:
    """The metadata files of one driver's claims on a node. The caller of a method holds the claim's lock."""

    def __init__(self, cdi_folder: Path, driver: str) -> None:
        self._root = os.fspath(cdi_folder / f"{driver}-metadata")  # a string: Paths are slower

    def write(self, requests: tuple[RequestMetadata, ...], uuids: Mapping[str, str]) -> Iterator[tuple[str, Mount]]:
        """Write the facts about the devices into the files; yield the CDI device that mounts each file, and the mount.

        Idempotent. `uuids` are the UUIDs of the partitions that were made, by device name.

        Raises: PrepareError("prepare.metadata-write", LATER).
        """
        for request in requests:
            path = f"{self._root}/{request.uid}_{request.base_request}.json"
            there = _read(path)
            generation = generation_of(there)
            if not generation or there.rstrip() != request.render(generation, uuids).rstrip():
                try:
                    _put(path, request.render(generation + 1, uuids), len(there))
                except OSError as exc:
                    why = f"metadata of request {request.request!r} can't be written to {path}: {exc.strerror or exc}"
                    hint = (
                        "free space on the file system of the CDI folder, or start the agent with --device-metadata off"
                    )
                    raise PrepareError("metadata-write", why, hint=hint, retry=Retry.LATER) from exc
            yield request.carrier, Mount(path, request.container_path, _OPTIONS)

    def remove(self, uid: str) -> None:
        """Remove the files of a claim. Idempotent. One that can't be removed is logged, and left to the next sweep."""
        for name in self._names():
            if _owner(name) != uid:
                continue
            try:
                os.unlink(f"{self._root}/{name}")  # noqa: PTH108
            except FileNotFoundError:
                pass
            except OSError as exc:
                log.warning("metadata not removed", extra=fields(file=f"{self._root}/{name}", err=str(exc)))

    def owners(self) -> set[str]:
        """Return the UIDs of the claims that have files."""
        return {_owner(name) for name in self._names()}

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._root)  # noqa: PTH208
        except OSError:  # no file has been written yet
            return []


def _owner(name: str) -> str:
    """Return the UID of a file's claim; no request has an underscore in its name."""
    return name.rpartition("_")[0]


def _put(path: str, content: bytes, length: int) -> None:
    """Write the content into the file at `path`, which other processes may have open, and make it if it is missing.

    `length` is that of the present content: shorter content is filled up with newlines, so that the file never shrinks.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120
        fd = os.open(path, flags, 0o644)
    try:
        os.fchmod(fd, 0o644)
        content = content.ljust(length, b"\n")
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    """Return the content of a file; b"" if it does not exist or can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


# File records: partitions and sharing as recorded beside a claim's CDI file, in case the ledger is lost.

OWNER_ENV = "DRA_DRIVER_PARTITION"
EFFECT_ENV = "DRA_DRIVER_SHARING"


def partition_env(recorded: RecordedPartition) -> tuple[str, ...]:
    """Return the variable that records a partition; none for a partition that an administrator made.

    Each partition has its own variable name, because older agents wrote the variables into the document, where a
    container with several partitions would otherwise see only the last.
    """
    name = f"{OWNER_ENV}_{recorded.device.upper().replace('-', '_')}"
    return (f"{name}={recorded.uuid}/{recorded.boot_id}",) if recorded.owner == US else ()


def partitions_of_env(device: str, env: Iterable[str]) -> Iterator[RecordedPartition]:
    """Yield the partitions that a device's variables record: their UUID and boot, but no GPU."""
    for value in (variable.partition("=")[2] for variable in env if variable.startswith(OWNER_ENV)):
        uuid, _, boot_id = value.rpartition("/")  # UUIDs of drivers before 470 contain slashes
        yield RecordedPartition(device, None, boot_id=boot_id, owner=US, uuid=uuid)


def sharing_env(step: SharingStep, effect: DeviceEffect | None) -> tuple[str, ...]:
    """Return the variable that records the effect on a shared device; none for time slices of the usual length."""
    if effect is None or step.settings == TimeSlicingSettings():
        return ()
    return (f"{EFFECT_ENV}={json_text(EFFECT.write(effect))}",)


def sharing_of_env(variable: str) -> RecordedSharing:
    """Return the step that a variable of `sharing_env` records. Raises: KeyError, TypeError, ValueError."""
    effect = EFFECT.read(_object(variable.partition("=")[2]))
    return RecordedSharing(effect.device, effect.settings, effect=effect)


def _object(text: str) -> Wire:
    """Return a JSON object. Raises: ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a value of the wrong form, whatever its type
    return found
