"""The table of attributes and capacities of Intel's devices, in the domain of their driver.

The names, kinds and values of Intel's own driver come first, so that classes and claims written for it work unchanged;
then those of Kubernetes and our own. A fact that is not known is left out: 0 is never published for it.

Source: attributes of intel/intel-resource-drivers-for-kubernetes v0.11 (model, family, driver, type, sriov, pciId,
pciAddress, health; memory, millicores). Its pciRoot is the deprecated form of the standard attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dra_driver.hardware.intel.facts import IntelGpu
from dra_driver.hardware.published import values
from dra_driver.hardware.published.rows import (
    ALL,
    EVERY,
    MEMORY,
    PASSED,
    STANDARD_ATTRIBUTES,
    Fact,
    FoundDevice,
    Owner,
    Published,
    ValueKind,
)
from dra_driver.hardware.published.values import of_gpu

_WHOLE_GPU_MILLICORES = 1000  # Intel's driver counts a GPU's time in thousandths, and hands out whole GPUs


def _id(gpu: IntelGpu) -> str | None:
    return None if gpu.device_id is None else f"0x{gpu.device_id:04x}"


def _row(name: str, kind: ValueKind, meaning: str, read: Callable[[IntelGpu], Fact], owner: Owner) -> Published:
    types = ALL if name == "driver" else EVERY  # no driver of the host has a GPU that a virtual machine has
    return Published(name, kind, meaning, types, of_gpu(IntelGpu, read), owner=owner, since="0.2.0")


def _type(found: FoundDevice) -> Fact:
    if found.is_passed:
        return found.type.value
    return "vf" if isinstance(found.gpu, IntelGpu) and found.gpu.is_virtual else "gpu"


INTEL_ROWS: tuple[Published, ...] = (
    Published(
        "type",
        ValueKind.STRING,
        "What the device is: `gpu`, or `vf` for a virtual function of one (SR-IOV); `vfio` for either one for a "
        "virtual machine.",
        EVERY,
        _type,
        since="0.2.0",
    ),
    _row(
        "model",
        ValueKind.STRING,
        "Model, such as `B580`; for a device id that our table lacks, the id itself, such as `0x9a60`.",
        lambda gpu: gpu.model or _id(gpu),
        Owner.VENDOR,
    ),
    _row(
        "family",
        ValueKind.STRING,
        "Family, such as `Arc B-Series`; `Unknown` for a device id that our table lacks.",
        lambda gpu: gpu.family or "Unknown",
        Owner.VENDOR,
    ),
    _row("pciId", ValueKind.STRING, "PCI device id, such as `0xe20b`.", _id, Owner.VENDOR),
    _row("driver", ValueKind.STRING, "Kernel driver: `i915` or `xe`.", lambda gpu: gpu.kernel_driver, Owner.VENDOR),
    _row(
        "sriov",
        ValueKind.BOOL,
        "Whether the GPU can have virtual functions.",
        lambda gpu: gpu.may_be_divided,
        Owner.VENDOR,
    ),
    _row(
        "health",
        ValueKind.STRING,
        "Always `Unknown`: faults of these GPUs are taints, and change no attribute.",
        lambda _: "Unknown",
        Owner.VENDOR,
    ),
    _row(
        "pciAddress",
        ValueKind.STRING,
        "The same as the standard pciBusID, which Intel's driver recommends instead.",
        lambda gpu: gpu.pci_address,
        Owner.VENDOR,
    ),
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    *PASSED,
    _row(
        "integrated",
        ValueKind.BOOL,
        "Whether the GPU is part of a processor and uses the host's memory; absent where that is not certain.",
        lambda gpu: gpu.is_integrated,
        Owner.OURS,
    ),
    _row(
        "physicalFunction",
        ValueKind.STRING,
        "PCI address of the GPU that a virtual function belongs to; absent on others.",
        lambda gpu: gpu.physical_address,
        Owner.OURS,
    ),
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "The GPU's own memory. Absent on integrated GPUs, and where the kernel does not report it.",
        EVERY,
        values.memory,
        unit="bytes",
        since="0.2.0",
    ),
    _row(
        "millicores", ValueKind.QUANTITY, "Always 1000: the whole GPU.", lambda _: _WHOLE_GPU_MILLICORES, Owner.VENDOR
    ),
)
