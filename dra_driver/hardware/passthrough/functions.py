"""PCI functions as the kernel shows them: bound driver, class, IOMMU group, addressable memory.

In: roots and an address. Out: values read now. Nothing is raised for a missing file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import entries_of, function_folder, is_alive, read_driver, read_hex, read_text
from dra_driver.hardware.pci import read_physical as physical_of
from dra_driver.hardware.port import Roots
from dra_driver.model.vendors import RegisteredVendor

_IORESOURCE_MEM = 0x200  # include/linux/ioport.h
_BARS = 6  # the lines of `resource` before the ROM and the bridge windows
_BRIDGE = 0x06


@dataclass(frozen=True, slots=True)
class PciFunctionState:
    """One PCI function now. `driver` is the bound driver, "" for none; `pci_class` has 24 bits."""

    address: str
    driver: str
    pci_class: int
    group: int | None

    @property
    def is_bridge(self) -> bool:
        """Return whether it is a bridge, which may stay with the host's driver in the group of a passed function."""
        return self.pci_class >> 16 == _BRIDGE

    @property
    def slot(self) -> str:
        """Return the address without the function's number."""
        return self.address.rpartition(".")[0]

    def __str__(self) -> str:
        """Return the address with the driver, as a message names them."""
        return f"{self.address} ({self.driver or 'no driver'})"


def read_function(roots: Roots, address: str) -> PciFunctionState | None:
    """Return a function as it is now, or None if it is not on the bus."""
    folder = function_folder(roots, address)
    if not folder.exists():
        return None
    return PciFunctionState(
        address, read_driver(str(folder)) or "", read_hex(folder / "class"), _group_of(folder / "iommu_group")
    )


def read_group_members(roots: Roots, group: int) -> tuple[PciFunctionState, ...]:
    """Return the functions of an IOMMU group, in the order of their addresses."""
    names = entries_of(Path(roots.sys, "kernel/iommu_groups", str(group), "devices"))
    found = (read_function(roots, name) for name in names)
    return tuple(one for one in found if one is not None)


def read_addressable_bytes(roots: Roots, address: str) -> int:
    """Return how many bytes of memory the function's base address registers show together.

    Source: sysfs-bus-pci, `resource`: one line of start, end and flags for each register.
    """
    text = read_text(function_folder(roots, address) / "resource") or ""
    return sum(_size_of(line) for line in text.splitlines()[:_BARS])


def read_override(roots: Roots, address: str) -> str:
    """Return the only driver that may bind the function, or "" if any driver may."""
    text = read_text(function_folder(roots, address) / "driver_override") or ""
    return "" if text == "(null)" else text


def has_virtual_functions(roots: Roots, address: str) -> bool:
    """Return whether virtual functions of this function exist; one that can't have any lacks the file."""
    text = read_text(function_folder(roots, address) / "sriov_numvfs") or "0"
    return text not in {"", "0"}


def read_physical(roots: Roots, address: str) -> str:
    """Return the address of the physical function behind a virtual one, "" for any other function."""
    return physical_of(function_folder(roots, address)) or ""


def is_of(roots: Roots, address: str, vendor: RegisteredVendor) -> bool:
    """Return whether a function on the bus is a GPU of a vendor, whatever drives it."""
    folder = function_folder(roots, address)
    return read_hex(folder / "vendor") == vendor.pci_vendor and read_hex(folder / "class") >> 16 in vendor.pci_classes


def can_be_reset(roots: Roots, address: str) -> bool:
    """Return whether the kernel has a way to reset this function."""
    return (function_folder(roots, address) / "reset").exists()


def answers(roots: Roots, address: str) -> bool:
    """Return whether the function's configuration space can be read and is not all ones, as that of a dead one is."""
    return is_alive(function_folder(roots, address) / "config") is True


def _group_of(link: Path) -> int | None:
    try:
        name = os.readlink(link).rpartition("/")[2]  # noqa: PTH115 - the name alone
    except OSError:
        return None
    return int(name) if name.isdecimal() else None


def _size_of(line: str) -> int:
    try:
        start, end, flags = (int(word, 16) for word in line.split())
    except ValueError:
        return 0
    return end - start + 1 if flags & _IORESOURCE_MEM and end > start else 0
