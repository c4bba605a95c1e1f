"""What AMD declares: hardware, facts, published names, the page that lists them, and its device classes.

The names, kinds and values of AMD's own driver come first and unchanged, so that classes and claims written for it work
unchanged; then those of Kubernetes and our own. A fact that is not known is left out, except where AMD's driver
publishes a value for that: memory 0, NUMA node -1.

Source: attributes of ROCm/k8s-gpu-dra-driver v1.0 (type, deviceID, productName, driverVersion, driverVersionFull,
partitionProfile, numaNode; memory, computeUnits, simdUnits), of its mode AutoPartition (computePartition,
memoryPartition; partitions), and of its devices for virtual machines (`passthrough`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dra_driver.base.wire import DeviceType
from dra_driver.hardware.amd.hardware import PASSTHROUGH_ROWS, AmdHardware, with_pci_facts
from dra_driver.hardware.amd.health import AmdGpu
from dra_driver.hardware.vendors import (
    ALL,
    ENFORCEMENT,
    EVERY,
    MEMORY,
    SHARE_FORM,
    SHARES_LEFT,
    STANDARD_ATTRIBUTES,
    DevicePluginSigns,
    Fact,
    FoundDevice,
    Owner,
    PassthroughTerms,
    Published,
    ReferencePage,
    SharingTerms,
    ValueKind,
    Vendor,
    VendorClass,
    is_virtual,
    memory_or_zero,
    of_gpu,
)

if TYPE_CHECKING:
    from dra_driver.hardware.metered import MetricNames


def _product(gpu: AmdGpu) -> str | None:
    """Return the product's name as AMD's driver writes it: underscores for blanks, no brackets."""
    words = re.sub(r"[()\[\]{}]", "", gpu.product_name or "").split()
    return "_".join(words) or None


def _profile(found: FoundDevice) -> Fact:
    """Return the modes as AMD's driver writes them, or None where the GPU can't be partitioned.

    Of the devices for virtual machines only virtual functions have one: the mode that follows from their number.
    """
    gpu = found.gpu
    if not isinstance(gpu, AmdGpu) or (found.is_passed and not is_virtual(found)):
        return None
    return "_".join(mode.lower() for mode in (gpu.compute_mode, gpu.memory_mode) if mode) or None


# What is known even of a GPU that no driver of the host has, because a virtual machine has it.
_KNOWN_WITHOUT_DRIVER = frozenset(
    ["productName", "deviceID", "numaNode", "architecture", "uniqueID", "computeUnits", "simdUnits"]
)
# The names that came later than the first.
_SINCE = dict.fromkeys(("numaNode", "computePartition", "memoryPartition"), "0.3.0")


def _row(name: str, kind: ValueKind, meaning: str, read: Callable[[AmdGpu], Fact], owner: Owner) -> Published:
    types = EVERY if name in _KNOWN_WITHOUT_DRIVER else ALL
    since = _SINCE.get(name, "0.2.0")
    return Published(name, kind, meaning, types, of_gpu(AmdGpu, read), owner=owner, since=since)


def _type(found: FoundDevice) -> Fact:
    if found.is_passed:
        return found.type.value
    if found.share is not None:
        return "amdgpu-share"
    return "amdgpu-partition" if found.gpu.part and not found.gpu.parts else "amdgpu"


_SHARE = (DeviceType.GPU_SHARE,)

AMD_ROWS: tuple[Published, ...] = (
    Published(
        "type",
        ValueKind.STRING,
        "What the device is: `amdgpu` for a whole GPU (even a divided one), `amdgpu-partition` for a partition, "
        "`amdgpu-share` for one that is shared with others, `vfio` for a GPU or a virtual function for a virtual "
        "machine.",
        EVERY,
        _type,
        since="0.2.0",
    ),
    _row(
        "productName",
        ValueKind.STRING,
        "Product name with underscores, such as `AMD_Instinct_MI300X`; absent where neither the board nor our table of "
        "PCI numbers gives one.",
        _product,
        Owner.VENDOR,
    ),
    _row(
        "deviceID",
        ValueKind.STRING,
        "PCI device id, such as `0x74a1`.",
        lambda gpu: None if gpu.device_id is None else f"0x{gpu.device_id:04x}",
        Owner.VENDOR,
    ),
    Published(
        "driverVersion",
        ValueKind.VERSION,
        "Version of the kernel driver, its first three numbers; absent for drivers that come with the kernel.",
        ALL,
        lambda found: found.driver_version,
        owner=Owner.VENDOR,
        since="0.2.0",
    ),
    _row(
        "driverVersionFull",
        ValueKind.STRING,
        "Version of the kernel driver as the driver writes it, such as `6.19.14.31400000`.",
        lambda gpu: gpu.driver_version,
        Owner.VENDOR,
    ),
    Published(
        "partitionProfile",
        ValueKind.STRING,
        "Compute and memory mode of the GPU, such as `cpx_nps4`; absent on GPUs that can't be partitioned. On a "
        "virtual function for a virtual machine the compute mode, such as `cpx`.",
        EVERY,
        _profile,
        since="0.2.0",
    ),
    _row(
        "computePartition",
        ValueKind.STRING,
        "Compute mode of the GPU, such as `cpx`, also on its partitions; absent on GPUs that can't be partitioned.",
        lambda gpu: gpu.compute_mode.lower() if gpu.compute_mode else None,
        Owner.VENDOR,
    ),
    _row(
        "memoryPartition",
        ValueKind.STRING,
        "Memory mode of the GPU, such as `nps4`, also on its partitions; absent on GPUs that can't be partitioned.",
        lambda gpu: gpu.memory_mode.lower() if gpu.memory_mode else None,
        Owner.VENDOR,
    ),
    _row(
        "numaNode",
        ValueKind.INT,
        "The same as the standard numaNode, but -1 where the kernel reports none.",
        lambda gpu: -1 if gpu.numa_node is None else gpu.numa_node,
        Owner.VENDOR,
    ),
    *PASSTHROUGH_ROWS,
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    _row(
        "architecture",
        ValueKind.STRING,
        "Architecture by the name that compilers know, such as `gfx942`.",
        lambda gpu: gpu.architecture_target,
        Owner.OURS,
    ),
    _row(
        "uniqueID",
        ValueKind.STRING,
        "The hardware's own id in hexadecimal, equal for all partitions of a GPU; absent where there is none.",
        lambda gpu: gpu.unique_id,
        Owner.OURS,
    ),
    _row(
        "fabricDomain",
        ValueKind.STRING,
        "GPUs with the same value reach each other over XGMI (the id of their hive). Absent without such links.",
        lambda gpu: gpu.link_domain,
        Owner.OURS,
    ),
    _row(
        "integrated",
        ValueKind.BOOL,
        "Whether the GPU uses the host's memory (an APU); absent where that is not certain.",
        lambda gpu: gpu.is_integrated,
        Owner.OURS,
    ),
    _row(
        "partitionIndex",
        ValueKind.INT,
        "Number of the partition within its GPU, from 0; absent on whole GPUs.",
        lambda gpu: gpu.part_number,
        Owner.OURS,
    ),
    _row("vbiosVersion", ValueKind.STRING, "Version of the video BIOS.", lambda gpu: gpu.vbios_version, Owner.OURS),
    *(replace(row, types=_SHARE, since="0.3.0") for row in (*SHARE_FORM, ENFORCEMENT)),
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "Memory. On an APU, how much of the host's memory programs may allocate; under NPS1, a partition's nominal "
        "share. 0 where no file reports it.",
        EVERY,
        memory_or_zero,
        unit="bytes",
        owner=Owner.VENDOR,
        since="0.2.0",
    ),
    Published(
        "partitions",
        ValueKind.QUANTITY,
        "Partitions of the device: 1 for a GPU that is not divided and for one partition, else how many it has.",
        (DeviceType.GPU,),
        of_gpu(AmdGpu, lambda gpu: (gpu.parts or 1) if gpu.compute_mode else None),
        since="0.3.0",
    ),
    _row("computeUnits", ValueKind.QUANTITY, "Compute units.", lambda gpu: gpu.compute_units, Owner.VENDOR),
    _row("simdUnits", ValueKind.QUANTITY, "SIMD units.", lambda gpu: gpu.simd_units, Owner.VENDOR),
    replace(SHARES_LEFT, types=_SHARE, since="0.3.0"),
)


# What AMD declares.


_CLASS = VendorClass(
    "gpu.amd.com",
    notes="""\
Any AMD GPU, or partition of one where the node's GPUs are divided (DPX, QPX, CPX).

The name and its meaning are those of AMD's own driver, so that claims written for it work unchanged. For GPUs
of one kind compare productName, deviceID or partitionProfile in the claim; for all partitions of a divided GPU at once
ask for type "amdgpu". Shares of a GPU have a class of their own, gpu-share.amd.com; so have GPUs for virtual machines,
vfio.gpu.amd.com, which a claim names that AMD's pages write with this class and the selector type == "vfio".
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type != "vfio" '
    '&& device.attributes["gpu.amd.com"].type != "amdgpu-share"',
    extended_resource="amd.com/gpu",
)
_WHOLE_CLASS = VendorClass(
    "gpu.amd.com-spx",
    notes="""\
An AMD GPU that is not divided: one in mode SPX, or one that can't be divided.

The name and its meaning are those of AMD's own driver where that divides GPUs on demand (AutoPartition).
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "amdgpu" '
    '&& device.attributes["gpu.amd.com"].?computePartition.orValue("spx") == "spx"',
)
_PASSED_CLASS = VendorClass(
    "vfio.gpu.amd.com",
    notes="""\
A whole AMD GPU, or a virtual function of one, for a virtual machine: bound to a VFIO driver when the claim is prepared,
given back when it ends.

Only the functions that an administrator names (the chart's passthrough.config) are offered; the class exists where
there are any. Claims for it are admitted in namespaces with the label gpu.amd.com/passthrough=true, because whoever has
the whole PCI function can write its firmware. Type and attributes are those of AMD's own driver (docs/kubevirt.md).
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "vfio"',
)

_SHARE_CLASS = VendorClass(
    "gpu-share.amd.com",
    notes="""\
A share of an AMD GPU, where the agent's sharing configuration lets several claims use one (docs/amd.md).

Ask for an amount with capacity.requests.memory where shares are counted in memory. To take only shares whose memory
the kernel limits, compare enforcement == "hard" in the claim.
""",
    expression='device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "amdgpu-share"',
)


def _metric_names() -> MetricNames:
    from dra_driver.hardware.amd.metering import NAMES  # noqa: PLC0415 - only where the GPUs are metered

    return NAMES


VENDOR = Vendor(
    title="AMD",
    open=AmdHardware,
    gpu=AmdGpu,
    rows=AMD_ROWS,
    page=ReferencePage("amd.md"),
    generated_classes=(_CLASS, _WHOLE_CLASS, _SHARE_CLASS, _PASSED_CLASS),
    metric_names=_metric_names,
    sharing=SharingTerms((), "memory of its own, Linux 6.14 with the dmem controller, and cgroup v2"),
    passthrough=PassthroughTerms(with_pci_facts, has_api_device=True),
    device_plugin=DevicePluginSigns(("amd.com/",), "amd.com_*"),  # source: ROCm/k8s-device-plugin
)
