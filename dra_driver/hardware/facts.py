"""Facts and edits: what a vendor reports about a node's GPUs, frozen, with nothing guessed; and what a container gets.

An optional fact that could not be read is None and is listed in `Facts.problems`. Only an unreadable UUID, PCI address,
minor or memory drops a GPU (where the GPU does not support reporting its memory, that is None and no problem).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dra_driver.base import names


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read or looks wrong. `subject` is a PCI address, a UUID or "node"."""

    code: str  # stable and dotted: "hardware.gpu-lost", "hardware.fact-unreadable" …
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One MIG device that exists now (a GPU instance with one compute instance of its full size, or a part of it).

    Units: memory in bytes, engines and multiprocessors as counts. `start` and `size` are the placement in the GPU's
    memory slices (eighths on 7-slice GPUs). `gi_id` and `ci_id` are the instance ids that the driver assigned.
    """

    uuid: str
    profile: str  # "1g.10gb", "1c.3g.40gb", "1g.10gb+me"
    gi_profile_id: int
    gi_id: int
    ci_id: int
    start: int
    size: int
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


class PlacementFacts(NamedTuple):
    """What is at one placement of a GPU now: whether MIG mode is on, and the finished partition, if there is one."""

    mig_enabled: bool
    partition: PartitionFacts | None = None


class CreatedPartition(NamedTuple):
    """A partition that exists now, whether this call made it, and whether it switched MIG mode on for it."""

    facts: PartitionFacts
    is_new: bool
    has_switched: bool = False


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One shape in which a GPU can be partitioned, as the vendor's library reports it.

    Units are those of `PartitionFacts`. `slices` are compute slices, `size` is in memory slices, and `starts` are the
    first memory slices at which an instance may be placed; `max_instances` fit on an empty GPU.
    """

    name: str  # "1g.10gb", "1g.10gb+me", "1g.20gb", "1g.10gb+gfx", "4g.40gb-me"
    gi_profile_id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    max_instances: int


@dataclass(frozen=True, slots=True)
class PassthroughFacts:
    """What is known of a GPU that an administrator offers to virtual machines.

    `driver` is the administrator's choice of a VFIO driver ("" for the usual one), and `addressable_bytes` the memory
    that the function shows on the bus. With `is_only_passed` containers never get the GPU. `is_away` means that a VFIO
    driver has the GPU now, so that all its other facts are those from before. `group` is its IOMMU group, and
    `physical` the address of the physical function behind a virtual one. With `has_api_device` a claim without a config
    gets the node by which a virtual machine maps memory, too.
    """

    addressable_bytes: int = 0
    has_iommufd: bool = False
    is_only_passed: bool = False
    is_away: bool = False
    driver: str = ""
    group: int | None = None
    physical: str = ""
    has_api_device: bool = False

    @property
    def physical_name(self) -> str:
        """Return the name of the GPU that the physical function behind a virtual one is."""
        return names.gpu_name(self.physical)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What a device of any vendor has. A vendor adds its own part by deriving from this (`NvidiaGpu`, `AmdGpu` …).

    `minor` is the number by which the vendor's driver counts the device, -1 where it has none; `nodes` are its device
    nodes below /dev where they are known when it is discovered. Devices with the same `link_domain` reach each other
    over the vendor's own links; it is None without such links. `numa_node` is None when the kernel reports -1.

    The facts of an ability of the port have a neutral value where the vendor lacks the ability: `partitions`, the
    `mig_` facts and `unusable` belong to `Partitionable`, `limits_memory` to `MemoryLimiting`.
    """

    vendor: ClassVar[str] = ""  # the vendor's name in the registry

    uuid: str
    pci_address: str  # in the form dddd:bb:dd.f, lower case
    minor: int
    memory_bytes: int | None
    product_name: str | None = None
    numa_node: int | None = None
    pcie_root: str | None = None  # "pci0000:64"
    pci_id: int | None = None  # device id << 16 | vendor id: 0x233010DE
    link_domain: str | None = None
    driver_version: str | None = None  # as the driver spells it, where each device reports its own
    serial: str | None = None
    vbios_version: str | None = None
    nodes: tuple[str, ...] = ()  # "dri/card1", "dri/renderD128"
    is_lost: bool = False  # it was seen in this boot, and these are its last facts
    # Some hardware divides a GPU itself. Then `part` is the part of the GPU that the device is ("cpx-3"; ""
    # if the GPU is not divided). All parts together are a device, too ("cpx-all"); its `parts` is their number.
    part: str = ""
    parts: int = 0
    partitions: tuple[PartitionFacts, ...] = ()
    mig_enabled: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()  # in order of id; empty where unknown, or where the GPU can't do MIG
    mig_toggles_without_reset: bool = False  # true on Hopper and newer
    # GPU instances beside `partitions` that can't be used: GPU instance profile id and first memory slice of each.
    unusable: tuple[tuple[int, int], ...] = ()
    limits_memory: bool = False  # whether the driver can limit how much of this GPU's memory a cgroup gets
    passthrough: PassthroughFacts | None = None  # None unless an administrator offers the GPU to virtual machines

    @property
    def whole_name(self) -> str:
        """Return the name of the whole GPU as a device."""
        return names.gpu_name(self.pci_address)

    @property
    def name(self) -> str:
        """Return the name of a GPU as it is now, of a partition of one, or of all its partitions.

        >>> GpuFacts("GPU-1", "0000:05:00.0", 0, None, part="cpx-3").name
        'gpu-0000-05-00-0-cpx-3'
        """
        return f"{self.whole_name}-{self.part}" if self.part else self.whole_name

    @property
    def passed_name(self) -> str:
        """Return the name of the whole GPU as a device for virtual machines."""
        return names.vfio_name(self.pci_address)

    @property
    def part_number(self) -> int | None:
        """Return which of its GPU's parts this is, None for a whole GPU or all of its parts together.

        >>> GpuFacts("u", "0000:05:00.0", 0, None, part="cpx-3").part_number
        3
        """
        number = self.part.rpartition("-")[2]
        return int(number) if number.isdecimal() and not self.parts else None

    @property
    def is_reset_with_peers(self) -> bool:
        """Return whether the device can only be reset together with those that it is linked to (`Resettable`)."""
        return False


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """The facts that IMEX channels of a node need: its one clique of the fabric, and the major of channel nodes."""

    domain: str  # <clusterUUID>.<cliqueId>
    major: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that one discovery found. GPUs are in PCI order; there are none where the hardware is absent.

    `driver_version` and `runtime_version` are strict semver ("580.126.20", "13.0.0"); the second is the newest version
    of the vendor's runtime interface that the driver supports (CUDA's for NVIDIA). `waiting_for` is what keeps the
    hardware from answering at all ("" when it answers); errors of Prepare show it.
    """

    vendor: str
    gpus: tuple[GpuFacts, ...] = ()
    driver_version: str | None = None
    runtime_version: str | None = None
    problems: tuple[Problem, ...] = ()
    waiting_for: str = ""
    channel: ChannelFacts | None = None  # None unless an IMEX channel is asked for, and there is one


# Field knowledge: drivers on which workloads hang when MIG and whole GPUs are used side by side.

MIXED = "hardware.mixed-mig-driver"
_FIRST_BAD, _FIRST_GOOD = (570,), (580, 65, 6)


def hangs_with_mixed_mig(driver_version: str | None) -> bool:
    """Return whether workloads hang on this driver while some of a node's GPUs are in MIG mode and others are not.

    >>> hangs_with_mixed_mig("570.133.20"), hangs_with_mixed_mig("580.65.6")
    (True, False)
    """
    numbers = (driver_version or "").partition("-")[0].split(".")
    if not all(number.isdigit() for number in numbers):
        return False
    return _FIRST_BAD <= tuple(map(int, numbers)) < _FIRST_GOOD


def mixed_mig_problems(gpus: Iterable[GpuFacts], driver_version: str | None) -> tuple[Problem, ...]:
    """Return a warning if a node's GPUs are mixed on such a driver."""
    if len({gpu.mig_enabled for gpu in gpus}) < 2 or not hangs_with_mixed_mig(driver_version):
        return ()
    text = (
        f"some GPUs are in MIG mode and others are not, and workloads hang then on driver {driver_version}; "
        "install 580.65.06 or newer, or use MIG on all GPUs of this node or on none"
    )
    return (Problem(MIXED, "node", text),)


# Edits: what a container gets. A vendor describes in these types what a device needs, and `cdi` writes them as a CDI
# document; neither knows the other. Field names follow the CDI specification's containerEdits.


READ_ONLY_BIND = ("ro", "nosuid", "nodev", "rbind", "rprivate")


class DeviceNode(NamedTuple):
    """One device node as the container sees it.

    `path` is the path in the container; `host_path` is set only where it differs. `major` and `minor` are always set,
    so that a runtime can create the node without reading the host's. `gid` is set only where it is not 0.
    `file_mode` is the permission bits of the host's node (octal); None leaves them to the runtime's default.
    """

    path: str
    major: int
    minor: int
    host_path: str = ""
    type: str = "c"
    permissions: str = "rw"
    file_mode: int | None = None
    gid: int = 0


class Mount(NamedTuple):
    """One bind mount. `host_path` is the path that the container runtime (not the agent) sees."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY_BIND


class Hook(NamedTuple):
    """One OCI hook. `path` is the path that the runtime sees; `args` includes argv[0]."""

    path: str
    args: tuple[str, ...]
    name: str = "createContainer"
    env: tuple[str, ...] = ()


class Edits(NamedTuple):
    """Everything that one device, or all devices of a claim, add to a container. `env` has entries `NAME=value`."""

    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.device_nodes or self.mounts or self.env or self.hooks or self.additional_gids)


def merge(parts: Iterable[Edits]) -> Edits:
    """Join edits in order and keep each distinct entry once, since two devices of a claim may need the same node."""
    parts = tuple(parts)
    return Edits(
        device_nodes=tuple(dict.fromkeys(n for p in parts for n in p.device_nodes)),
        mounts=tuple(dict.fromkeys(m for p in parts for m in p.mounts)),
        env=tuple(dict.fromkeys(e for p in parts for e in p.env)),
        hooks=tuple(dict.fromkeys(h for p in parts for h in p.hooks)),
        additional_gids=tuple(sorted({g for p in parts for g in p.additional_gids})),
    )
