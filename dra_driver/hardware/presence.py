"""Presence: which vendors have a PCI function on this node, before anything of a vendor is loaded."""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.pci import entries_of, read_hex
from dra_driver.hardware.port import Roots
from dra_driver.model.vendors import VENDORS, RegisteredVendor


def vendors_on_bus(roots: Roots) -> tuple[RegisteredVendor, ...]:
    """Return the vendors of the registry that have a function on the PCI bus, in the order of the registry."""
    folder, found = Path(roots.sys, "bus/pci/devices"), set()
    for name in entries_of(folder):
        numbers = read_hex(folder / name / "vendor"), read_hex(folder / name / "class") >> 16
        found |= {one.name for one in VENDORS if numbers[0] == one.pci_vendor and numbers[1] in one.pci_classes}
    return tuple(one for one in VENDORS if one.name in found)
