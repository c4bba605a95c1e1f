"""Intel's GPUs and virtual functions for virtual machines: what the PCI bus shows of one without a host driver."""

from __future__ import annotations

from dataclasses import replace

from dra_driver.hardware import pci
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.intel.facts import IntelGpu
from dra_driver.hardware.intel.models import model_of
from dra_driver.hardware.port import Roots


def with_pci_facts(gpu: GpuFacts, roots: Roots) -> GpuFacts:
    """Return the facts of a function, completed by what its PCI numbers show."""
    if not isinstance(gpu, IntelGpu) or gpu.pci_id is None:
        return gpu
    device_id = gpu.pci_id >> 16
    folder = pci.function_folder(roots, gpu.pci_address)
    model, physical = model_of(device_id), pci.read_physical(folder)
    return replace(
        gpu,
        product_name=f"Intel {model.family} {model.name}" if model else None,
        device_id=device_id,
        model=model.name if model else None,
        family=model.family if model else None,
        is_integrated=model.is_integrated if model else None,
        is_virtual=physical is not None,
        physical_address=physical,
        may_be_divided=bool(pci.read_size(folder / "sriov_totalvfs")),
    )
