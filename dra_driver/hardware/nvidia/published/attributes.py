"""The table of every attribute of NVIDIA's devices; the capacities are in `capacities`.

In: what a vendor found out about one device. Out: its values by published name; no other code spells such a name. The
names, kinds and values of NVIDIA's driver come first and unchanged, so that device classes and claims written for it
work unchanged; then come our own, by rank, while the API's limit of 32 leaves room. The names that a device type
carries are fixed here, not chosen for each device: an unknown fact is left out, and no other name takes its place.

Never published: anything that changes because a claim was prepared (MIG mode, compute mode, current clocks or limits).
`docs/attributes.md` is generated from this table.
"""

from __future__ import annotations

from dataclasses import replace

from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.hardware.nvidia.published.own_attributes import OWN_ATTRIBUTES
from dra_driver.hardware.published import values
from dra_driver.hardware.published.rows import (
    ALL,
    EVERY,
    MIG,
    PART,
    PASSED,
    SHARE,
    STANDARD_ATTRIBUTES,
    Owner,
    Published,
    ValueKind,
)
from dra_driver.hardware.published.shares import ENFORCEMENT, SHARE_FORM
from dra_driver.hardware.published.values import of_gpu

ATTRIBUTES: tuple[Published, ...] = (
    Published(
        "type",
        ValueKind.STRING,
        "What the device is: `gpu` or `mig` for a whole one; `gpu-share` or `mig-share` for one shared with others; "
        "`vfio` for a whole GPU for a virtual machine.",
        EVERY,
        lambda f: f.type.value,
    ),
    Published(
        "uuid",
        ValueKind.STRING,
        "UUID of the GPU (`GPU-…`) or of the partition (`MIG-…`; absent where Prepare creates it); a share has that of "
        "the shared device, and a GPU for a virtual machine one that is derived from its PCI address.",
        EVERY,
        values.uuid,
    ),
    Published(
        "parentUUID",
        ValueKind.STRING,
        "UUID of the GPU that the partition or share belongs to.",
        PART,
        lambda f: f.gpu.uuid,
    ),
    Published("profile", ValueKind.STRING, "MIG profile, such as `1g.10gb`.", MIG, values.of_partition("profile")),
    Published(
        "productName",
        ValueKind.STRING,
        "Product name as the driver reports it, such as `NVIDIA H100 80GB HBM3`; absent on a GPU for a virtual machine "
        "that no driver of the host has had.",
        EVERY,
        lambda f: f.gpu.product_name,
    ),
    Published(
        "brand",
        ValueKind.STRING,
        "Brand, such as `Nvidia`, `Tesla`, `GeForceRTX`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.brand),
    ),
    Published(
        "architecture",
        ValueKind.STRING,
        "Architecture, such as `Ampere`, `Ada Lovelace`, `Hopper`, `Blackwell`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.architecture),
    ),
    Published(
        "cudaComputeCapability",
        ValueKind.VERSION,
        "CUDA compute capability, such as `9.0.0`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.compute_capability),
    ),
    Published(
        "driverVersion", ValueKind.VERSION, "Version of the loaded kernel driver.", ALL, lambda f: f.driver_version
    ),
    Published(
        "cudaDriverVersion",
        ValueKind.VERSION,
        "Newest CUDA version that the driver supports.",
        ALL,
        lambda f: f.runtime_version,
    ),
    Published(
        "addressingMode",
        ValueKind.STRING,
        "How the GPU reaches pageable host memory: `ATS`, `HMM` or `None`.",
        ALL,
        of_gpu(NvidiaGpu, lambda gpu: gpu.addressing_mode),
    ),
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    *SHARE_FORM,
    Published(
        "sharingStrategy",
        ValueKind.STRING,
        "How users of the device run side by side: `TimeSlicing`, `MPS`, or `none` where nothing is set up.",
        SHARE,
        values.strategy,
        owner=Owner.OURS,
    ),
    Published(
        "tenant",
        ValueKind.STRING,
        "The only namespace whose claims may have the share; absent if all may.",
        SHARE,
        lambda f: (f.share.tenant or None) if f.share else None,
        owner=Owner.OURS,
        since="0.1.1",
    ),
    ENFORCEMENT,
    *(row for row in PASSED if row.kind is not ValueKind.QUANTITY),
    *OWN_ATTRIBUTES,
)
