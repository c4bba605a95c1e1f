"""What a vendor declares, with the rows of attributes and capacities, and how a vendor of the registry is loaded.

Each vendor's folder has a module `vendor` with one value, `VENDOR`. No code of a vendor is imported before it is asked
for, so that a node pays only for the vendors that it has.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from dra_driver.base.flags import registered
from dra_driver.base.wire import DeviceType, Share, Strategy
from dra_driver.hardware.facts import Facts, GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, Roots

if TYPE_CHECKING:
    from dra_driver.hardware.metered import MetricNames


@dataclass(frozen=True, slots=True)
class VendorClass:
    """A DeviceClass of a vendor. `notes` are its comment; `extended_resource` is what pods may ask for instead."""

    name: str
    notes: str
    expression: str
    extended_resource: str = ""


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """The page in docs/ that lists, between two marks, what a vendor's devices are published with.

    `closing` is the text below the tables; it may contain the number of values of each type of device ({gpu}, {mig} …).
    `more` are rows that no device carries under exactly that name.
    """

    file: str
    closing: str = ""
    more: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class DevicePluginSigns:
    """How a vendor's device plugins are recognised: prefixes of their resources, and a pattern of their sockets."""

    resources: tuple[str, ...]
    sockets: str


@dataclass(frozen=True, slots=True)
class PassthroughTerms:
    """How a vendor's GPUs are passed to virtual machines.

    With `has_api_device` a claim always gets the node by which a virtual machine maps memory, as with the vendor's own
    driver. `with_pci_facts` completes the facts of a function that no driver of the host has had in this boot from what
    the bus shows of it.
    """

    with_pci_facts: Callable[[GpuFacts, Roots], GpuFacts]
    has_api_device: bool = False


@dataclass(frozen=True, slots=True)
class SharingTerms:
    """How a vendor's devices can be shared: by which strategies, and a text about what hard memory limits need."""

    strategies: tuple[Strategy, ...]
    limits_need: str


@dataclass(frozen=True, slots=True)
class Vendor:
    """Everything that a vendor declares beside its driver's name, which the registry has.

    `title` is its name in texts. `open` returns its hardware behind the port, which has an ability if it implements the
    ability's protocol. `gpu` is the type of its facts. `rows` are the names that its devices are published with, in the
    domain of its driver. While a device plugin with the signs of `device_plugin` serves its devices, none is offered.
    `labels` returns the labels of a node with such GPUs; it is None if no software expects any. `metric_names` returns
    the names of its own exporter, under which its readings are published (`port.Metered`). `generated_classes` are the
    files below deviceclasses/ that `make docs` writes; others may be there, written by hand. `sharing` is how its
    devices can be shared, None if they can't; `is_tested` is whether they can be tested by a program that computes on
    them, and `is_reset` whether this driver can reset them. `passthrough` is what its GPUs for virtual machines need,
    None if it has none.
    """

    title: str
    open: Callable[[Roots], Hardware]
    gpu: type[GpuFacts]
    rows: tuple[Published, ...]
    page: ReferencePage
    device_plugin: DevicePluginSigns
    generated_classes: tuple[VendorClass, ...] = ()
    labels: Callable[[Facts, Roots], Mapping[str, str]] | None = None
    metric_names: Callable[[], MetricNames] | None = None
    sharing: SharingTerms | None = None
    is_tested: bool = False
    is_reset: bool = False
    passthrough: PassthroughTerms | None = None


@cache
def load_vendor(name: str) -> Vendor:
    """Return what a vendor of the registry declares. Raises: KeyError for a name that is not registered."""
    if registered(name) is None:
        raise KeyError(name)
    declared = import_module(f"dra_driver.hardware.{name}.vendor").VENDOR
    if not isinstance(declared, Vendor):
        raise TypeError(f"dra_driver.hardware.{name}.vendor.VENDOR is not a Vendor")
    return declared


# Published: what a row of the table of attributes and capacities says, and the rows that vendors have in common. A row
# names a value, says what it means, which devices carry it, and how it is read from what a vendor found out.

GPU = (DeviceType.GPU, DeviceType.GPU_SHARE)
MIG = (DeviceType.MIG, DeviceType.MIG_SHARE)
SHARE = (DeviceType.GPU_SHARE, DeviceType.MIG_SHARE)
PART = (DeviceType.MIG, *SHARE)
ALL = (DeviceType.GPU, DeviceType.MIG, *SHARE)
VFIO = (DeviceType.VFIO,)
EVERY = (*ALL, *VFIO)  # of a GPU; an IMEX channel belongs to none

MEMORY, COMPUTE, SHARES = "memory", "compute", "shares"
MEMORY_SLICE = "memorySlice"
MAX_MEMORY_SLICES = 8  # of one GPU: a GPU with seven compute slices has eight memory slices


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
    VENDOR = "vendor"  # its own DRA driver
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """What is known of one device: its GPU, the partition if it is one, the node's driver, and how it is shared."""

    gpu: GpuFacts
    partition: PartitionFacts | None
    driver_version: str | None
    runtime_version: str | None
    share: Share | None = None
    replicas: int | None = None
    is_passed: bool = False  # to a virtual machine

    @property
    def type(self) -> DeviceType:
        """Return the type of the device."""
        if self.is_passed:
            return DeviceType.VFIO
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
    read: Callable[[FoundDevice], Fact]
    unit: str = ""
    owner: Owner = Owner.VENDOR
    rank: int = 0
    since: str = "0.1.0"


STANDARD = "resource.kubernetes.io/"

# The attributes that Kubernetes defines, which devices of all vendors have in common.
STANDARD_ATTRIBUTES: tuple[Published, ...] = (
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
)


# The form of the standard attribute that came before it: the bus without the domain.
PCI_ROOT = Published(
    "pciRoot",
    ValueKind.STRING,
    "Bus of the standard pcieRoot, such as `64`; that one has replaced it.",
    EVERY,
    lambda f: f.gpu.pcie_root.rpartition(":")[2] if f.gpu.pcie_root else None,
    since="0.3.0",
)


def is_virtual(found: FoundDevice) -> Fact:
    """Return whether a GPU for a virtual machine is a virtual function."""
    return bool(found.gpu.passthrough and found.gpu.passthrough.physical)


# The further attributes of a whole GPU for a virtual machine; names, kinds and values are those of NVIDIA's driver.
PASSED: tuple[Published, ...] = (
    Published(
        "deviceID",
        ValueKind.STRING,
        "PCI device id, such as `0x2330`.",
        VFIO,
        lambda f: None if f.gpu.pci_id is None else f"0x{f.gpu.pci_id >> 16:04x}",
        since="0.3.0",
    ),
    Published(
        "vendorID",
        ValueKind.STRING,
        "PCI vendor id, such as `0x10de`.",
        VFIO,
        lambda f: None if f.gpu.pci_id is None else f"0x{f.gpu.pci_id & 0xFFFF:04x}",
        since="0.3.0",
    ),
    Published(
        "iommuFDEnabled",
        ValueKind.BOOL,
        "Whether the kernel offers the device through iommufd too.",
        VFIO,
        lambda f: f.gpu.passthrough.has_iommufd if f.gpu.passthrough else None,
        since="0.3.0",
    ),
    Published(
        "addressableMemory",
        ValueKind.QUANTITY,
        "Memory that the function shows on the PCI bus: the sum of its base address registers.",
        VFIO,
        lambda f: f.gpu.passthrough.addressable_bytes if f.gpu.passthrough else None,
        unit="bytes",
        since="0.3.0",
    ),
)


# Published values: readers of the values that devices of several vendors have.

Gpu = TypeVar("Gpu", bound=GpuFacts)


def of_gpu(kind: type[Gpu], read: Callable[[Gpu], Fact]) -> Callable[[FoundDevice], Fact]:
    """Return a reader of one fact of a vendor's own GPUs."""

    def read_found(found: FoundDevice) -> Fact:
        return read(found.gpu) if isinstance(found.gpu, kind) else None

    return read_found


def of_partition(field: str) -> Callable[[FoundDevice], Fact]:
    """Return a reader of one fact of the partition."""

    def read(found: FoundDevice) -> Fact:
        value: Fact = getattr(found.partition, field, None)
        return value

    return read


def device_memory(found: FoundDevice) -> Fact:
    """Return the memory in bytes."""
    return found.gpu.memory_bytes if found.partition is None else found.partition.memory_bytes


def memory_or_zero(found: FoundDevice) -> Fact:
    """Return the memory in bytes, and 0 for a container's GPU that has none of its own or does not show it.

    A selector that compares memory passes over such a GPU; were the name missing, that selector would be an error, and
    the pod would be blocked on every node.
    """
    known = device_memory(found)
    return 0 if known is None and not found.is_passed else known


def device_uuid(found: FoundDevice) -> Fact:
    """Return the UUID; a partition that Prepare creates has none yet.

    A GPU for a virtual machine has one that follows from its PCI address, because its own is not known while no driver
    of the host has it. Source: NVIDIA's DRA driver, the same name space.
    """
    if found.is_passed:
        from uuid import NAMESPACE_DNS, uuid5  # noqa: PLC0415 - 1 MiB that an idle node does not need

        return str(uuid5(NAMESPACE_DNS, found.gpu.pci_address))
    return found.gpu.uuid if found.partition is None else found.partition.uuid or None


def of_share(field: str) -> Callable[[FoundDevice], Fact]:
    """Return a reader of one property of the share."""

    def read(found: FoundDevice) -> Fact:
        value: Fact = getattr(found.share, field, None)
        return str(value) if isinstance(value, str) else value  # an enumeration is published as its text

    return read


def sharing_strategy(found: FoundDevice) -> Fact:
    """Return how a shared device is shared."""
    return str(found.share.strategy or "none") if found.share else None


# Published names of shares that vendors have in common: how a device is shared, and what keeps its users apart.

SHARE_FORM: tuple[Published, ...] = (
    Published(
        "sharedBy",
        ValueKind.STRING,
        "What shares are counted in: `replicas`, `memory` or `compute`.",
        SHARE,
        of_share("mode"),
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
        of_share("index"),
        owner=Owner.OURS,
    ),
)

ENFORCEMENT = Published(
    "enforcement",
    ValueKind.STRING,
    "What keeps a user within its share: `none`, `cooperative` (limits in its own environment) or `hard` (the "
    "driver refuses more memory).",
    SHARE,
    of_share("enforcement"),
    owner=Owner.OURS,
)

SHARES_LEFT = Published(
    SHARES,
    ValueKind.QUANTITY,
    "Shares of a device that can be allocated many times; each allocation takes one.",
    SHARE,
    lambda _: None,
    owner=Owner.OURS,
)
