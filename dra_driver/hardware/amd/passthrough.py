"""AMD's GPUs and virtual functions for virtual machines: their attributes, and what the PCI bus shows of them.

In: the PCI function. Out: rows of the table of attributes, and facts. Names and values are those of AMD's own driver.
Source: ROCm/k8s-gpu-dra-driver, docs/driver-attributes.md (vfio).
"""

from __future__ import annotations

from dataclasses import replace

from dra_driver.hardware import pci
from dra_driver.hardware.amd.facts import AmdGpu
from dra_driver.hardware.amd.product_names import product_name
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import Roots
from dra_driver.hardware.published.rows import PASSED, VFIO, FoundDevice, Published, ValueKind, is_virtual


def _group(found: FoundDevice) -> str | None:
    group = found.gpu.passthrough.group if found.gpu.passthrough else None
    return None if group is None else str(group)


PASSTHROUGH_ROWS: tuple[Published, ...] = (
    Published(
        "pciAddr", ValueKind.STRING, "The same as the standard pciBusID.", VFIO, lambda found: found.gpu.pci_address,
        since="0.3.0",
    ),
    Published("iommuGroup", ValueKind.STRING, "Number of the IOMMU group.", VFIO, _group, since="0.3.0"),
    Published(
        "isVF", ValueKind.BOOL, "Whether it is a virtual function of a GPU (SR-IOV).", VFIO, is_virtual, since="0.3.0"
    ),
    Published(
        "numaNode", ValueKind.INT, "The same as the standard numaNode.", VFIO, lambda found: found.gpu.numa_node,
        since="0.3.0",
    ),
    *(row for row in PASSED if row.name != "deviceID"),
)  # fmt: skip


def with_pci_facts(gpu: GpuFacts, roots: Roots) -> GpuFacts:
    """Return the facts of a function, completed by what its PCI numbers show."""
    if not isinstance(gpu, AmdGpu) or gpu.pci_id is None:
        return gpu
    device_id = gpu.pci_id >> 16
    revision = pci.read_hex(pci.function_folder(roots, gpu.pci_address) / "revision")
    return replace(gpu, device_id=device_id, product_name=product_name(device_id, revision))
