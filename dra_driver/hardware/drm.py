"""GPUs behind the kernel's DRM subsystem: their PCI functions and DRM nodes, from sysfs.

In: roots, and the kernel drivers of a vendor. Out: `DrmFunction`s in the order of their addresses. The drivers' folders
name the functions; where a tree lacks those folders, the class of DRM devices does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import entries_of, read_driver, read_hex, read_text
from dra_driver.hardware.port import Roots
from dra_driver.model.names import normal_pci_address
from dra_driver.model.vendors import RegisteredVendor

_CARD, _RENDER = re.compile(r"card\d+"), re.compile(r"renderD(\d+)")
_PCI_ID = re.compile(r"^PCI_ID=([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})$", re.MULTILINE)
_SLOT = re.compile(r"^PCI_SLOT_NAME=(\S+)$", re.MULTILINE)
_DRIVER = re.compile(r"^DRIVER=(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DrmNodes:
    """The DRM nodes of one device: `card` by name ("card1"), the render node by its minor; None for a missing one."""

    card: str | None = None
    render_minor: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the nodes below /dev, the card first."""
        return names_of_nodes(self.card, -1 if self.render_minor is None else self.render_minor)


@dataclass(frozen=True, slots=True)
class DrmFunction:
    """One GPU that a kernel driver drives. `folder` is that of the PCI function."""

    address: str
    folder: Path
    driver: str
    drm: DrmNodes

    @property
    def device_id(self) -> int | None:
        """Return the PCI device id, or None if no file has it."""
        found = _PCI_ID.search(read_text(self.folder / "uevent") or "")
        return read_hex(self.folder / "device") or (int(found[2], 16) if found else None)

    @property
    def revision(self) -> int | None:
        """Return the PCI revision, or None if no file has it."""
        text = read_text(self.folder / "revision")
        return read_hex(self.folder / "revision") if text else None


def names_of_nodes(card: str | None, render_minor: int) -> tuple[str, ...]:
    """Return the names of DRM nodes below /dev, without those that do not exist.

    >>> names_of_nodes("card1", 128), names_of_nodes(None, -1)
    (('dri/card1', 'dri/renderD128'), ())
    """
    render = (f"dri/renderD{render_minor}",) if render_minor >= 0 else ()
    return (*((f"dri/{card}",) if card else ()), *render)


def read_functions(roots: Roots, vendor: RegisteredVendor, drivers: tuple[str, ...]) -> tuple[DrmFunction, ...]:
    """Return the GPUs that a vendor's kernel drivers drive, each once."""
    found: dict[str, DrmFunction] = {}
    for function in (*_of_drivers(roots, drivers), *_of_drm_class(roots, vendor, drivers)):
        found.setdefault(function.address, function)
    return tuple(found[address] for address in sorted(found))


def _of_drivers(roots: Roots, drivers: tuple[str, ...]) -> Iterator[DrmFunction]:
    """Yield the functions in the folders of the kernel drivers."""
    for driver in drivers:
        for below in (f"bus/pci/drivers/{driver}", f"module/{driver}/drivers/pci:{driver}"):
            folder = Path(roots.sys, below)
            for name in entries_of(folder):
                address = _address(name)
                if address is not None:
                    yield DrmFunction(address, folder / name, driver, read_drm(folder / name / "drm"))


def _of_drm_class(roots: Roots, vendor: RegisteredVendor, drivers: tuple[str, ...]) -> Iterator[DrmFunction]:
    """Yield the functions behind a vendor's DRM devices; the folder has those of the machine's other vendors, too."""
    classes = Path(roots.sys, "class/drm")
    names = tuple(entries_of(classes))
    renders = {_slot(classes / name / "device"): int(found[1]) for name in names if (found := _RENDER.fullmatch(name))}
    for name in names:
        folder = classes / name / "device"
        if _CARD.fullmatch(name) and _vendor(folder) == vendor.pci_vendor:
            found = _DRIVER.search(read_text(folder / "uevent") or "")
            driver = found[1] if found else read_driver(os.fspath(folder))
            address = _slot(folder)
            if address is not None and driver in drivers:
                yield DrmFunction(address, folder, driver, DrmNodes(name, renders.get(address)))


def _vendor(folder: Path) -> int:
    found = _PCI_ID.search(read_text(folder / "uevent") or "")
    return read_hex(folder / "vendor") or (int(found[1], 16) if found else 0)


def _slot(folder: Path) -> str | None:
    """Return the PCI address of a DRM device's parent, or None for one that is no PCI function (a partition)."""
    found = _SLOT.search(read_text(folder / "uevent") or "")
    if found is None and os.path.islink(folder):  # noqa: PTH114 - does not raise
        return _address(os.path.realpath(folder).rpartition("/")[2])
    return _address(found[1]) if found else None


def _address(text: str) -> str | None:
    try:
        return normal_pci_address(text)
    except ValueError:
        return None


def read_drm(folder: Path) -> DrmNodes:
    """Return the DRM nodes in the `drm` folder of a device. A missing node is None: its number is never guessed."""
    names = tuple(entries_of(folder))
    renders = [int(found[1]) for name in names if (found := _RENDER.fullmatch(name))]
    return DrmNodes(next((name for name in names if _CARD.fullmatch(name)), None), renders[0] if renders else None)


def read_device_nodes(roots: Roots) -> tuple[str, ...]:
    """Return the names of the cards and render nodes in the folder of devices."""
    names = entries_of(Path(roots.dev, "dri"))
    return tuple(name for name in names if name.startswith(("card", "renderD")))


def on_bus(roots: Roots, vendor: RegisteredVendor) -> tuple[tuple[str, str | None], ...]:
    """Return the address and the driver of each function of a vendor on the bus that is a GPU, whatever its driver."""
    folder = Path(roots.sys, "bus/pci/devices")
    found = []
    for name in entries_of(folder):
        if read_hex(folder / name / "vendor") == vendor.pci_vendor:
            kind = read_hex(folder / name / "class") >> 16
            if kind in vendor.pci_classes:
                found.append((name, read_driver(os.fspath(folder / name))))
    return tuple(found)
