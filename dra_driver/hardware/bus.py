"""What the PCI bus shows of a GPU: there, gone, dead, or in other hands. From sysfs alone.

A GPU that fell off the bus keeps its folder, but its configuration space reads all ones. A function that another kernel
driver has (vfio-pci for a VM), or none, is absent by intent.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware import pci
from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.port import Roots


def bus_state(roots: Roots, address: str, drivers: tuple[str, ...]) -> BusState:
    """Return what the bus shows of a GPU that one of these kernel drivers should have.

    Where no bus is visible at all, everything counts as there.
    """
    folder = pci.function_folder(roots, address)
    if not folder.parent.is_dir() or not any(folder.parent.iterdir()):
        return BusState.HERE
    if not folder.exists():
        return BusState.GONE
    if pci.read_driver(str(folder)) not in drivers:
        return BusState.ELSEWHERE
    return BusState.DEAD if _reads_ones(folder / "config") else BusState.HERE


def _reads_ones(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return False
