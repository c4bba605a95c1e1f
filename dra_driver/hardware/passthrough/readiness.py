"""Readiness: whether this node's kernel keeps virtual machines apart from its memory.

Without an IOMMU a passed function reads and writes all of the host's memory, and with interrupts that are not remapped
it can raise any of the host's. Both are refused, whatever else is set up.
Source: Linux, drivers/vfio: module parameters enable_unsafe_noiommu_mode and allow_unsafe_interrupts.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.passthrough.functions import can_be_reset, has_virtual_functions
from dra_driver.hardware.pci import entries_of, read_text
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import HardwareError, Retry

_UNSAFE_INTERRUPTS = ("vfio_iommu_type1", "iommufd")
_ON = {"Y", "y", "1"}


def require_safe_iommu(roots: Roots) -> None:
    """Refuse a node on which a virtual machine could reach the host's memory.

    Raises: HardwareError("hardware.no-iommu"), ("hardware.noiommu-mode"), ("hardware.unsafe-interrupts").
    """
    modules = Path(roots.sys, "module")
    if _is_on(modules / "vfio/parameters/enable_unsafe_noiommu_mode"):
        raise _refusal("noiommu-mode", "vfio runs with enable_unsafe_noiommu_mode, which gives VMs the host's memory")
    if not any(entries_of(Path(roots.sys, "kernel/iommu_groups"))):
        raise HardwareError(
            "no-iommu",
            "this node has no IOMMU groups, so no GPU can be passed to a virtual machine",
            hint="switch the IOMMU on: VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line",
            retry=Retry.LATER,
        )
    for module in _UNSAFE_INTERRUPTS:
        if _is_on(modules / module / "parameters/allow_unsafe_interrupts"):
            text = f"{module} runs with allow_unsafe_interrupts, which lets VMs raise the host's interrupts"
            raise _refusal("unsafe-interrupts", text)


def require_passable(roots: Roots, address: str) -> None:
    """Refuse a function that is divided now, or that could not be reset after a virtual machine had it.

    Raises: HardwareError("hardware.has-virtual-functions"), ("hardware.no-reset").
    """
    if has_virtual_functions(roots, address):
        hint = "remove its virtual functions first, or name those for virtual machines"
        raise HardwareError("has-virtual-functions", f"GPU {address} has virtual functions", hint=hint)
    if not can_be_reset(roots, address):
        text = f"GPU {address} can't be reset, so the next user would find what a virtual machine left in it"
        raise HardwareError("no-reset", text)


def has_iommufd(roots: Roots) -> bool:
    """Return whether the kernel offers devices through iommufd beside the legacy groups."""
    return Path(roots.dev, "iommu").exists()


def _is_on(parameter: Path) -> bool:
    return read_text(parameter) in _ON


def _refusal(code: str, text: str) -> HardwareError:
    hint = "take the module's parameter back and load it again (docs/kubevirt.md)"
    return HardwareError(code, text, hint=hint, retry=Retry.LATER)
