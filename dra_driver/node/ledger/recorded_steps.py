"""Recorded steps: what the ledger keeps of each step of a claim, which is everything that is needed to undo it.

They are values: one type for each kind of step, and `UnknownStep` for those of a newer agent. `step_records` writes and
reads them; `plugin.effects` registers, by kind, the code that carries the steps out and undoes them.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dra_driver.base.wire import (
    SHARED_DEVICE,
    ClientLimits,
    Key,
    RecordForm,
    SharedDevice,
    SharingSettings,
    TimeSlicingSettings,
    Wire,
    json_text,
    record_of_settings,
    settings_of_record,
)
from dra_driver.hardware.facts import GpuFacts, MigProfile
from dra_driver.hardware.vfio import UNKNOWN, PciIdentity
from dra_driver.node.claims.plan import (
    CdiFileStep,
    ComputeUnitsStep,
    MemoryLimitStep,
    MigModeStep,
    MigPartitionStep,
    PassthroughStep,
    SharingStep,
)
from dra_driver.node.mps.client import MpsChannel

# Effect records: what was done to a shared device, as the ledger and the claims' CDI files record it.


class Progress(enum.StrEnum):
    """How far an effect has been applied. One that is APPLYING may or may not be in force."""

    APPLYING = "applying"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class DeviceEffect:
    """What was done to a device, in which boot, and which settings were found on it before.

    Several claims record one effect, and their records are equal at every stage of it: `progress` is not compared.
    """

    device: SharedDevice
    settings: SharingSettings
    found: Wire
    boot_id: str
    progress: str = field(default=Progress.APPLYING, compare=False)


EFFECT = RecordForm(
    DeviceEffect,
    without=("progress",),
    device=Key("device", SHARED_DEVICE.write, SHARED_DEVICE.read),
    settings=Key("settings", record_of_settings, settings_of_record),
    boot_id=Key("bootId"),
)
"""The form of an effect in a claim's step and in its CDI file, where its progress is not recorded."""


US, OTHER = "us", "other"  # owners of a partition: this driver, or an administrator


@dataclass(frozen=True, slots=True)
class GpuReference:
    """What is needed to find a GPU again."""

    uuid: str
    pci_address: str
    minor: int

    @staticmethod
    def of(gpu: GpuFacts) -> GpuReference:
        """Return the reference to a GPU."""
        return GpuReference(gpu.uuid, gpu.pci_address, gpu.minor)

    def facts(self) -> GpuFacts:
        """Return the GPU as the hardware port expects it, with no other facts than these."""
        return GpuFacts(uuid=self.uuid, pci_address=self.pci_address, minor=self.minor, memory_bytes=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """What every recorded step has: a kind, and a key that is unique within the kind.

    `rest` has the keys that a newer agent added, which are written back. `as_recorded` is the JSON object that was read
    for the step, which is written back as it is; a changed copy has none.
    """

    kind: ClassVar[str]

    rest: Wire = field(default_factory=dict)
    as_recorded: Wire | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        raise NotImplementedError

    @property
    def identity(self) -> tuple[str, str]:
        """The kind and the key, by which a planned step finds its record."""
        return self.kind, self.key


@dataclass(frozen=True, slots=True)
class RecordedFile(RecordedStep):
    """A CDI file, by its name."""

    kind: ClassVar[str] = CdiFileStep.kind

    file: str

    @property
    def key(self) -> str:
        """The file's name."""
        return self.file


@dataclass(frozen=True, slots=True)
class RecordedMode(RecordedStep):
    """MIG mode that was switched off on a GPU; `restore`: whether an administrator had switched it on in `boot_id`."""

    kind: ClassVar[str] = MigModeStep.kind

    gpu: GpuReference
    restore: bool = False
    boot_id: str | None = None

    @property
    def key(self) -> str:
        """The GPU's PCI address."""
        return self.gpu.pci_address


@dataclass(frozen=True, slots=True)
class RecordedPartition(RecordedStep):
    """A partition and its owner. `gpu`, `profile` and `start` are None if the step was recovered from a CDI file.

    `boot_id`, `owner` and `uuid` are None until the hardware has been asked; after that, `uuid` is empty until the
    partition has been made. `switches_mode` is whether MIG mode was off, so that it must be switched on first.
    """

    kind: ClassVar[str] = MigPartitionStep.kind

    device: str
    gpu: GpuReference | None
    profile: MigProfile | None = None
    start: int | None = None
    boot_id: str | None = None
    owner: str | None = None
    uuid: str | None = None
    switches_mode: bool = False

    @property
    def key(self) -> str:
        """The device's name."""
        return self.device

    @property
    def placement(self) -> tuple[str, int, int] | None:
        """The GPU's PCI address, the profile's id and the start; None if they are not known."""
        if self.gpu is None or self.profile is None or self.start is None:
            return None
        return self.gpu.pci_address, self.profile.gi_profile_id, self.start

    def as_made(self, uuid: str) -> RecordedPartition:
        """Return the record of the partition that was made."""
        return replace(self, uuid=uuid)

    def is_ours(self, boot_id: str) -> bool:
        """Return whether this driver made the partition, or is about to, in this boot."""
        return self.owner == US and self.boot_id == boot_id


@dataclass(frozen=True, slots=True)
class MovedFunction:
    """A PCI function that is given to a virtual machine, and the driver that it had before ("" for none).

    `begun` is the last write to sysfs that was begun for it, "" before the first.
    """

    address: str
    former: str
    begun: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPassthrough(RecordedStep):
    """A GPU that is bound to a VFIO driver in boot `boot_id`, with its functions, the GPU's own first.

    `group` is its IOMMU group, and `pci_identity` is that of the GPU's function before it was bound. `persistence` is
    whether persistence mode has to be switched on again. `functions` is empty until the hardware has been read.
    """

    kind: ClassVar[str] = PassthroughStep.kind

    device: str
    gpu: GpuReference
    functions: tuple[MovedFunction, ...] = ()
    driver: str = ""
    group: int = -1
    persistence: bool = False
    boot_id: str | None = None
    pci_identity: PciIdentity = UNKNOWN

    @property
    def key(self) -> str:
        """The device's name."""
        return self.device

    def with_begun(self, address: str, write: str) -> RecordedPassthrough:
        """Return the record with a write that is about to begin."""
        functions = tuple(replace(one, begun=write) if one.address == address else one for one in self.functions)
        return replace(self, functions=functions)


@dataclass(frozen=True, slots=True)
class RecordedSharing(RecordedStep):
    """A shared device, how it is shared, and what the claim has of it (as in `SharingStep`).

    `effect` is the effect on the device, and `channel` leads to its MPS daemon; both are None before the step was
    carried out.
    """

    kind: ClassVar[str] = SharingStep.kind

    device: SharedDevice
    settings: SharingSettings
    in_file: tuple[str, ...] = ()
    clients: Mapping[str, ClientLimits] = field(default_factory=dict)
    made: str = ""
    effect: DeviceEffect | None = None
    channel: MpsChannel | None = None

    @property
    def key(self) -> str:
        """The name of the shared device."""
        return self.device.name


@dataclass(frozen=True, slots=True)
class RecordedLimit(RecordedStep):
    """A limit in bytes on what `pods`, by UID, may use of a GPU's memory."""

    kind: ClassVar[str] = MemoryLimitStep.kind

    device: SharedDevice
    limit: int
    pods: tuple[str, ...]

    @property
    def key(self) -> str:
        """The GPU's name."""
        return self.device.name


@dataclass(frozen=True, slots=True)
class RecordedComputeUnits(RecordedStep):
    """The compute units of a GPU to which the programs of a claim are limited; empty until they have been chosen."""

    kind: ClassVar[str] = ComputeUnitsStep.kind

    device: SharedDevice
    units: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The GPU's name."""
        return self.device.name


@dataclass(frozen=True, slots=True)
class UnknownStep(RecordedStep):
    """A step of kind `name` that this agent can't read: kept as it is, in `rest`."""

    kind: ClassVar[str] = ""

    name: str

    @property
    def key(self) -> str:
        """The value of the field that is the key in steps of known kinds."""
        return str(self.rest.get("key") or self.rest.get("file"))

    @property
    def identity(self) -> tuple[str, str]:
        """A pair that no planned step has."""
        return "", f"{self.name}/{self.key}"


def is_only_file(recorded: Iterable[RecordedStep]) -> bool:
    """Return whether recorded steps wrote a CDI file and did nothing else to the node."""
    return all(isinstance(step, RecordedFile) for step in recorded)


def ends_with_power(recorded: Iterable[RecordedStep]) -> bool:
    """Return whether a power failure removes everything that recorded steps made: partitions and files in memory.

    Source: NVIDIA MIG user guide, "Persistence": instances have to be made again after a reset or reboot.
    """
    return all(isinstance(step, (RecordedFile, RecordedPartition)) for step in recorded)


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
