"""The one table of every attribute and capacity that we publish.

In: what a vendor found out about one device. Out: its values by published name; no other code spells such a name. The
names, kinds and values of NVIDIA's driver come first and unchanged, so that device classes and claims written for it
work as they are; then come our own, by rank, while the API's limit of 32 leaves room. Which names a device type carries
is decided here once, not per device: an unknown fact is left out, and nothing moves up into its place.

Never published: anything that changes because a claim was prepared (MIG mode, compute mode, current clocks or limits).
`docs/attributes.md` is generated from this table.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.inventory.device import DeviceType, Share
from dra_driver.model import limits

GPU = (DeviceType.GPU, DeviceType.GPU_SHARE)
MIG = (DeviceType.MIG, DeviceType.MIG_SHARE)
SHARE = (DeviceType.GPU_SHARE, DeviceType.MIG_SHARE)
PART = (DeviceType.MIG, *SHARE)
ALL = (DeviceType.GPU, DeviceType.MIG, *SHARE)

MEMORY, COMPUTE, SHARES = "memory", "compute", "shares"
MEMORY_SLICE = "memorySlice"
MEMORY_SLICES_TABLED = 8  # a GPU with seven compute slices has eight memory slices; room is reserved for that many

_FAMILIES = {
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada-lovelace",
    "hopper",
    "blackwell",
    "rubin",
}


class ValueKind(enum.StrEnum):
    """The type that the API gives a value."""

    STRING = "string"
    BOOL = "bool"
    INT = "int"
    VERSION = "version"
    QUANTITY = "quantity"  # a capacity; all other kinds are attributes


class Owner(enum.StrEnum):
    """Who defined what a name means."""

    KUBERNETES = "Kubernetes"
    NVIDIA = "NVIDIA"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about one device: its GPU, its partition if it is one, the node's driver, and how it is shared."""

    gpu: GpuFacts
    partition: PartitionFacts | None
    driver_version: str | None
    cuda_driver_version: str | None
    share: Share | None = None
    replicas: int | None = None

    @property
    def type(self) -> DeviceType:
        """Return the type of the device."""
        if self.share is None:
            return DeviceType.GPU if self.partition is None else DeviceType.MIG
        return DeviceType.GPU_SHARE if self.partition is None else DeviceType.MIG_SHARE


Fact = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Published:
    """One row: a published name, what it means, which devices carry it, and how its value is read (None: not known).

    `rank` orders our own names (1 comes first); 0 is for the names that always come before them.
    """

    name: str
    kind: ValueKind
    meaning: str
    types: tuple[DeviceType, ...]
    read: Callable[[Found], Fact]
    unit: str = ""
    owner: Owner = Owner.NVIDIA
    rank: int = 0
    since: str = "0.1.0"


def _of_partition(field: str) -> Callable[[Found], Fact]:
    def read(found: Found) -> Fact:
        value: Fact = getattr(found.partition, field, None)
        return value

    return read


def _memory(found: Found) -> Fact:
    return found.gpu.memory_bytes if found.partition is None else found.partition.memory_bytes


def _uuid(found: Found) -> Fact:
    return found.gpu.uuid if found.partition is None else found.partition.uuid or None


def _of_share(field: str) -> Callable[[Found], Fact]:
    def read(found: Found) -> Fact:
        value: Fact = getattr(found.share, field, None)
        return str(value) if isinstance(value, str) else value  # an enumeration is published as its text

    return read


def _strategy(found: Found) -> Fact:
    return str(found.share.strategy or "none") if found.share else None


def family(gpu: GpuFacts) -> str | None:
    """Return the GPU's family as GPU feature discovery names it, or None where it has no name for it.

    Source: label nvidia.com/gpu.family, which is derived from the compute capability; the architecture determines the
    same families and more.
    """
    word = (gpu.architecture or "").lower().replace(" ", "-")
    if word in _FAMILIES:
        return word
    major, _, rest = (gpu.compute_capability or "").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    if int(major) == 7:
        return "volta" if int(minor) < 5 else "turing"
    if int(major) == 8:
        return "ampere" if int(minor) < 9 else "ada-lovelace"
    return {3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 10: "blackwell", 12: "blackwell"}.get(int(major))


def label_product(product_name: str | None) -> str | None:
    """Return a product name as GPU feature discovery writes it into a label: `NVIDIA-H100-80GB-HBM3`.

    Source: label nvidia.com/gpu.product: characters other than letters, digits and `-_.` are dropped, blanks become
    dashes.
    """
    if product_name is None:
        return None
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", product_name).split()) or None


STANDARD = "resource.kubernetes.io/"

ATTRIBUTES: tuple[Published, ...] = (
    Published(
        "type",
        ValueKind.STRING,
        "What the device is: `gpu` or `mig` for a whole one; `gpu-share` or `mig-share` for one shared with others.",
        ALL,
        lambda f: f.type.value,
    ),
    Published(
        "uuid",
        ValueKind.STRING,
        "UUID of the GPU (`GPU-…`) or of the partition (`MIG-…`; absent where Prepare creates it); a share has that of "
        "the shared device.",
        ALL,
        _uuid,
    ),
    Published(
        "parentUUID",
        ValueKind.STRING,
        "UUID of the GPU that the partition or share belongs to.",
        PART,
        lambda f: f.gpu.uuid,
    ),
    Published("profile", ValueKind.STRING, "MIG profile, such as `1g.10gb`.", MIG, _of_partition("profile")),
    Published(
        "productName",
        ValueKind.STRING,
        "Product name as the driver reports it, such as `NVIDIA H100 80GB HBM3`.",
        ALL,
        lambda f: f.gpu.product_name,
    ),
    Published("brand", ValueKind.STRING, "Brand, such as `Nvidia`, `Tesla`, `GeForceRTX`.", ALL, lambda f: f.gpu.brand),
    Published(
        "architecture",
        ValueKind.STRING,
        "Architecture, such as `Ampere`, `Ada Lovelace`, `Hopper`, `Blackwell`.",
        ALL,
        lambda f: f.gpu.architecture,
    ),
    Published(
        "cudaComputeCapability",
        ValueKind.VERSION,
        "CUDA compute capability, such as `9.0.0`.",
        ALL,
        lambda f: f.gpu.compute_capability,
    ),
    Published(
        "driverVersion", ValueKind.VERSION, "Version of the loaded kernel driver.", ALL, lambda f: f.driver_version
    ),
    Published(
        "cudaDriverVersion",
        ValueKind.VERSION,
        "Newest CUDA version that the driver supports.",
        ALL,
        lambda f: f.cuda_driver_version,
    ),
    Published(
        "addressingMode",
        ValueKind.STRING,
        "How the GPU reaches pageable host memory: `ATS`, `HMM` or `None`.",
        ALL,
        lambda f: f.gpu.addressing_mode,
    ),
    Published(
        STANDARD + "pciBusID",
        ValueKind.STRING,
        "PCI address of the GPU, in the form `dddd:bb:dd.f`.",
        ALL,
        lambda f: f.gpu.pci_address,
        owner=Owner.KUBERNETES,
    ),
    Published(
        STANDARD + "pcieRoot",
        ValueKind.STRING,
        "PCIe root complex above the GPU, such as `pci0000:64`; equal for devices below the same root.",
        ALL,
        lambda f: f.gpu.pcie_root,
        owner=Owner.KUBERNETES,
    ),
    Published(
        STANDARD + "numaNode",
        ValueKind.INT,
        "NUMA node of the GPU; absent where the kernel reports none.",
        ALL,
        lambda f: f.gpu.numa_node,
        owner=Owner.KUBERNETES,
    ),
    Published(
        "sharedBy",
        ValueKind.STRING,
        "What shares are counted in: `replicas`, `memory` or `compute`.",
        SHARE,
        _of_share("mode"),
        owner=Owner.OURS,
    ),
    Published(
        "replicas",
        ValueKind.INT,
        "How many replicas share the device; absent where shares are counted in memory or compute.",
        SHARE,
        lambda f: f.replicas,
        owner=Owner.OURS,
    ),
    Published(
        "replicaIndex",
        ValueKind.INT,
        "Number of this replica, from 0; absent where one device is allocated many times.",
        SHARE,
        _of_share("index"),
        owner=Owner.OURS,
    ),
    Published(
        "sharingStrategy",
        ValueKind.STRING,
        "How users of the device run side by side: `TimeSlicing`, `MPS`, or `none` where nothing is set up.",
        SHARE,
        _strategy,
        owner=Owner.OURS,
    ),
    Published(
        "tenant",
        ValueKind.STRING,
        "Namespace whose claims alone may have the share; absent where any may.",
        SHARE,
        lambda f: (f.share.tenant or None) if f.share else None,
        owner=Owner.OURS,
        since="0.1.1",
    ),
    Published(
        "enforcement",
        ValueKind.STRING,
        "What keeps a user within its share: `none`, `cooperative` (limits in its own environment) or `hard` (the "
        "driver refuses more memory).",
        SHARE,
        _of_share("enforcement"),
        owner=Owner.OURS,
    ),
    Published(
        "nvlinkDomain",
        ValueKind.STRING,
        "GPUs with the same value reach each other over NVLink. It is the `<clusterUUID>.<cliqueId>` of the fabric, or "
        "else an id of the connected group in this node. Absent without links.",
        ALL,
        lambda f: f.gpu.nvlink_domain,
        owner=Owner.OURS,
        rank=1,
    ),
    Published(
        "numaNode",
        ValueKind.INT,
        "The same as the standard attribute, for clusters whose selectors use the driver's own domain.",
        ALL,
        lambda f: f.gpu.numa_node,
        owner=Owner.OURS,
        rank=2,
    ),
    Published(
        "nvlinkCount",
        ValueKind.INT,
        "NVLinks that are up. Absent on cards without NVLink.",
        GPU,
        lambda f: f.gpu.nvlink_count,
        unit="links",
        owner=Owner.OURS,
        rank=3,
    ),
    Published(
        "migCapable",
        ValueKind.BOOL,
        "Whether the GPU can be partitioned with MIG (not whether it is).",
        GPU,
        lambda f: f.gpu.mig_capable,
        owner=Owner.OURS,
        rank=4,
    ),
    Published(
        "eccEnabled",
        ValueKind.BOOL,
        "Whether the memory has been protected by ECC since the last boot.",
        GPU,
        lambda f: f.gpu.ecc_enabled,
        owner=Owner.OURS,
        rank=5,
    ),
    Published(
        "serial", ValueKind.STRING, "Serial number of the board.", GPU, lambda f: f.gpu.serial, owner=Owner.OURS, rank=6
    ),
    Published(
        "vbiosVersion",
        ValueKind.STRING,
        "Version of the video BIOS, such as `96.00.A5.00.01` (not a semantic version).",
        GPU,
        lambda f: f.gpu.vbios_version,
        owner=Owner.OURS,
        rank=7,
    ),
    Published(
        "family",
        ValueKind.STRING,
        "Family as GPU feature discovery names it: `ampere`, `ada-lovelace`, `hopper`, `blackwell` …",
        ALL,
        lambda f: family(f.gpu),
        owner=Owner.OURS,
        rank=8,
    ),
    Published(
        "labelProduct",
        ValueKind.STRING,
        "Product as GPU feature discovery writes it into a node label, such as `NVIDIA-H100-80GB-HBM3`.",
        GPU,
        lambda f: label_product(f.gpu.product_name),
        owner=Owner.OURS,
        rank=9,
    ),
    Published(
        "memoryBandwidth",
        ValueKind.INT,
        "Peak bandwidth of the GPU's memory.",
        GPU,
        lambda f: f.gpu.memory_bandwidth_bytes_per_s,
        unit="bytes/s",
        owner=Owner.OURS,
        rank=10,
    ),
    Published(
        "powerLimitMax",
        ValueKind.INT,
        "Highest power limit that can be set (not the limit in force).",
        GPU,
        lambda f: f.gpu.power_limit_max_w,
        unit="W",
        owner=Owner.OURS,
        rank=11,
    ),
    Published(
        "smClockMax",
        ValueKind.INT,
        "Highest clock of the multiprocessors (not the current clock).",
        GPU,
        lambda f: f.gpu.sm_clock_max_mhz,
        unit="MHz",
        owner=Owner.OURS,
        rank=12,
    ),
)

CAPACITIES: tuple[Published, ...] = (
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "Memory of the device, or of a replica its part. Absent on GPUs that share the host's memory and report none.",
        ALL,
        _memory,
        unit="bytes",
    ),
    Published(
        SHARES,
        ValueKind.QUANTITY,
        "Shares of a device that can be allocated many times; each allocation takes one.",
        SHARE,
        lambda _: None,
        owner=Owner.OURS,
    ),
    Published(
        COMPUTE,
        ValueKind.QUANTITY,
        "Percent of the multiprocessors; a share takes as many as its claim requests.",
        SHARE,
        lambda _: None,
        unit="percent",
        owner=Owner.OURS,
    ),
    Published(
        "multiprocessors", ValueKind.QUANTITY, "Streaming multiprocessors.", MIG, _of_partition("multiprocessors")
    ),
    Published("copyEngines", ValueKind.QUANTITY, "Copy engines.", MIG, _of_partition("copy_engines")),
    Published("decoders", ValueKind.QUANTITY, "Video decoders.", MIG, _of_partition("decoders")),
    Published("encoders", ValueKind.QUANTITY, "Video encoders.", MIG, _of_partition("encoders")),
    Published("jpegEngines", ValueKind.QUANTITY, "JPEG engines.", MIG, _of_partition("jpeg_engines")),
    Published("ofaEngines", ValueKind.QUANTITY, "Optical flow accelerators.", MIG, _of_partition("ofa_engines")),
)

MEMORY_SLICES = Published(
    MEMORY_SLICE + "<i>",
    ValueKind.QUANTITY,
    "1 for each memory slice `i` of the GPU that the partition covers, counted from 0.",
    (DeviceType.MIG,),
    lambda _: 1,
)


def names_of(device_type: DeviceType) -> tuple[Published, ...]:
    """Return the rows that devices of a type carry, in the order of the table.

    These are all names without a rank and then, with room kept for the memory slices of a partition, as many of our own
    by rank as fit.

    Source: Kubernetes API resource/v1 ResourceSliceMaxAttributesAndCapacitiesPerDevice.
    """
    rows = [row for row in (*ATTRIBUTES, *CAPACITIES) if device_type in row.types]
    # What shares of one device are counted in differs: no device has percent of compute and a number of replicas.
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES - sum(row.rank == 0 and row.name != COMPUTE for row in rows)
    if device_type is DeviceType.MIG:
        room -= MEMORY_SLICES_TABLED
    ours = sorted((row for row in rows if row.rank), key=lambda row: row.rank)[: max(room, 0)]
    return tuple(row for row in rows if row.rank == 0 or row in ours)


ROWS: dict[DeviceType, tuple[Published, ...]] = {kind: names_of(kind) for kind in DeviceType}
