"""The registry of vendors: one row for each, with everything that is known of it before its folder is loaded.

A vendor's name is that of its folder below `hardware/`, where `vendor.py` declares everything else. Its devices are
published by a DRA driver of their own. A PCI function is one of its devices if vendor and base class are those below;
source: PCI ID database, PCI Code and ID Assignment (03: display controllers, 12: processing accelerators).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegisteredVendor:
    """One vendor: its folder, its DRA driver, and the PCI numbers of its devices."""

    name: str
    driver: str
    pci_vendor: int
    pci_classes: tuple[int, ...]


VENDORS = (
    RegisteredVendor("nvidia", "gpu.nvidia.com", 0x10DE, (0x03,)),
    RegisteredVendor("amd", "gpu.amd.com", 0x1002, (0x03, 0x12)),
    RegisteredVendor("intel", "gpu.intel.com", 0x8086, (0x03,)),
    RegisteredVendor("gaudi", "gaudi.intel.com", 0x1DA3, (0x12,)),
)
DEFAULT_VENDOR = VENDORS[0]  # also the vendor of simulated machines


def registered_as(name: str) -> RegisteredVendor:
    """Return the vendor of a name. Raises: KeyError."""
    return {vendor.name: vendor for vendor in VENDORS}[name]


def registered(name: str) -> RegisteredVendor | None:
    """Return the vendor of a name, or None if there is no such vendor."""
    return next((vendor for vendor in VENDORS if vendor.name == name), None)


def registered_or_default(name: str) -> RegisteredVendor:
    """Return the vendor of a name; for a name that no vendor has (simulated hardware), the default vendor."""
    return registered(name) or DEFAULT_VENDOR
