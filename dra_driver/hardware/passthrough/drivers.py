"""VFIO drivers: which one a function needs, and under which name the kernel has it.

The general driver is vfio-pci. Some GPUs need a variant that shows virtual machines more than their registers; with the
general one, the memory of such a GPU would be missing. A driver's folder in sysfs may be spelt with dashes where its
module has underscores.
Source: Linux, drivers/vfio/pci/nvgrace-gpu/main.c, nvgrace_gpu_vfio_pci_table.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.pci import read_pci_id
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import HardwareError, Retry

GENERAL = "vfio-pci"
_NVGRACE = "nvgrace_gpu_vfio_pci"
_VARIANTS = {id_ << 16 | 0x10DE: _NVGRACE for id_ in (0x2342, 0x2345, 0x2348, 0x2941, 0x31C2)}


def is_vfio(driver: str) -> bool:
    """Return whether a kernel driver passes functions to virtual machines.

    >>> is_vfio("vfio-pci"), is_vfio("nvgrace_gpu_vfio_pci"), is_vfio("nvidia")
    (True, True, False)
    """
    return driver.replace("_", "-").endswith("vfio-pci")


def needed_driver(roots: Roots, address: str, wanted: str = "") -> str:
    """Return the driver for a function, as sysfs spells it; `wanted` is an administrator's choice.

    Raises: HardwareError("hardware.module-missing", LATER) naming the module that has to be loaded.
    """
    name = wanted or _VARIANTS.get(read_pci_id(roots, address) or 0, GENERAL)
    folder = Path(roots.sys, "bus/pci/drivers")
    for spelling in dict.fromkeys((name, name.replace("_", "-"), name.replace("-", "_"))):
        if (folder / spelling / "bind").exists():
            return spelling
    module = name.replace("-", "_")
    raise HardwareError(
        "module-missing",
        f"the kernel module {module}, which GPU {address} needs for a virtual machine, is not loaded",
        hint=f"load it on the host, at each boot too: a line `{module}` in /etc/modules-load.d/",
        retry=Retry.LATER,
    )
