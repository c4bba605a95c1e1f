"""The state of a GPU on the PCI bus: there, gone, dead, or bound to another driver. From sysfs alone.

A GPU that fell off the bus keeps its folder, but its configuration space reads all ones. A function that another kernel
driver has (vfio-pci for a VM), or no driver, is absent by intent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dra_driver.hardware import pci
from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.port import Roots


def bus_state(roots: Roots, address: str, drivers: tuple[str, ...]) -> BusState:
    """Return the state of a GPU on the PCI bus. `drivers` are the kernel drivers that make the vendor's GPUs usable.

    If sysfs shows no PCI function at all, every GPU counts as there.
    """
    folder = pci.function_folder(roots, address)
    if not any(pci.entries_of(folder.parent)):
        return BusState.HERE
    if not os.path.exists(folder):  # noqa: PTH110 - does not raise where a folder above can't be searched
        return BusState.GONE
    if pci.read_driver(str(folder)) not in drivers:
        return BusState.ELSEWHERE
    return BusState.DEAD if pci.is_alive(folder / "config") is False else BusState.HERE


def bus_states(roots: Roots, addresses: tuple[str, ...], drivers: tuple[str, ...]) -> Mapping[str, BusState]:
    """Return the state on the bus of each of these GPUs, by PCI address."""
    return {address: bus_state(roots, address, drivers) for address in addresses}
