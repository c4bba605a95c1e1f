"""VFIO drivers: the one that a function needs, and the name under which the kernel has it.

The general driver is vfio-pci. Some GPUs need a variant that shows virtual machines more than their registers; with the
general one, the memory of such a GPU would be missing. For a virtual function of another vendor's GPU, a variant is
better because it can move the virtual machine to another node, but the general driver works too. A driver's folder in
sysfs may be spelt with dashes where its module has underscores.
Source: Linux, drivers/vfio/pci/nvgrace-gpu/main.c, nvgrace_gpu_vfio_pci_table; drivers/vfio/pci/xe/main.c (6.19).
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.passthrough.functions import read_physical
from dra_driver.hardware.pci import read_pci_id
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import HardwareError, Retry

GENERAL = "vfio-pci"
_NVGRACE = "nvgrace_gpu_vfio_pci"
# By PCI vendor: the variant for its virtual functions, used where it is loaded.
_VARIANTS_OF_FUNCTIONS = {0x8086: "xe_vfio_pci"}
_VARIANTS = {id_ << 16 | 0x10DE: _NVGRACE for id_ in (0x2342, 0x2345, 0x2348, 0x2941, 0x31C2)}


def is_vfio(driver: str) -> bool:
    """Return whether a kernel driver passes functions to virtual machines.

    >>> is_vfio("vfio-pci"), is_vfio("nvgrace_gpu_vfio_pci"), is_vfio("nvidia")
    (True, True, False)
    """
    return driver.replace("_", "-").endswith("vfio-pci")


def variant_of(pci_id: int) -> str:
    """Return the driver that a GPU of this identity (device and vendor, 16 bits each) needs.

    >>> variant_of(0x294110DE), variant_of(0x233010DE)
    ('nvgrace_gpu_vfio_pci', 'vfio-pci')
    """
    return _VARIANTS.get(pci_id, GENERAL)


def needed_driver(roots: Roots, address: str, wanted: str = "") -> str:
    """Return the driver for a function, as sysfs spells it; `wanted` is an administrator's choice.

    Raises: HardwareError("hardware.module-missing", LATER) naming the module that has to be loaded.
    """
    pci_id = read_pci_id(roots, address) or 0
    name = wanted or variant_of(pci_id)
    is_function = not wanted and read_physical(roots, address) != ""
    better = _VARIANTS_OF_FUNCTIONS.get(pci_id & 0xFFFF, "") if is_function else ""
    found = _loaded(roots, better) or _loaded(roots, name)
    if found:
        return found
    module = name.replace("-", "_")
    raise HardwareError(
        "module-missing",
        f"the kernel module {module}, which GPU {address} needs for a virtual machine, is not loaded",
        hint=f"load it on the host, at each boot too: a line `{module}` in /etc/modules-load.d/",
        retry=Retry.LATER,
    )


def _loaded(roots: Roots, name: str) -> str:
    """Return a driver as sysfs spells it, or "" where it is not loaded."""
    if not name:
        return ""
    folder = Path(roots.sys, "bus/pci/drivers")
    spellings = dict.fromkeys((name, name.replace("_", "-"), name.replace("-", "_")))
    return next((one for one in spellings if (folder / one / "bind").exists()), "")
