"""AMD's GPUs on the PCI bus and their DRM nodes, from sysfs.

In: roots. Out: `AmdFunction`s in the order of their addresses. A GPU is what the kernel driver amdgpu drives: display
controllers and processing accelerators alike. The driver's folder names them; where a tree lacks that folder, the class
of DRM devices does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import entries_of, read_hex, read_text
from dra_driver.hardware.port import Roots
from dra_driver.model.names import normal_pci_address

AMD_VENDOR = 0x1002
DRIVER = "amdgpu"
_DRIVER_FOLDERS = ("bus/pci/drivers/amdgpu", "module/amdgpu/drivers/pci:amdgpu")
_CARD, _RENDER = re.compile(r"card\d+"), re.compile(r"renderD(\d+)")
_PCI_ID = re.compile(r"^PCI_ID=([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})$", re.MULTILINE)
_SLOT = re.compile(r"^PCI_SLOT_NAME=(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DrmNodes:
    """The DRM nodes of one device: `card` by name ("card1"), the render node by its minor; None where it has none."""

    card: str | None = None
    render_minor: int | None = None


@dataclass(frozen=True, slots=True)
class AmdFunction:
    """One GPU that the kernel driver drives. `folder` is that of the PCI function."""

    address: str
    folder: Path
    drm: DrmNodes

    @property
    def device_id(self) -> int | None:
        """Return the PCI device id, None where no file says it."""
        found = _PCI_ID.search(read_text(self.folder / "uevent") or "")
        return read_hex(self.folder / "device") or (int(found[2], 16) if found else None)

    @property
    def revision(self) -> int | None:
        """Return the PCI revision, None where no file says it."""
        text = read_text(self.folder / "revision")
        return read_hex(self.folder / "revision") if text else None


def read_functions(roots: Roots) -> tuple[AmdFunction, ...]:
    """Return the GPUs that the kernel driver drives, each once."""
    found: dict[str, AmdFunction] = {}
    for function in (*_driven(roots), *_drawn(roots)):
        found.setdefault(function.address, function)
    return tuple(found[address] for address in sorted(found))


def _driven(roots: Roots) -> Iterator[AmdFunction]:
    """Yield the functions in the folder of the kernel driver."""
    for below in _DRIVER_FOLDERS:
        folder = Path(roots.sys, below)
        for name in entries_of(folder):
            address = _address(name)
            if address is not None:
                yield AmdFunction(address, folder / name, read_drm(folder / name / "drm"))


def _drawn(roots: Roots) -> Iterator[AmdFunction]:
    """Yield the functions behind the DRM devices of AMD; a machine's other vendors have theirs in the same folder."""
    classes = Path(roots.sys, "class/drm")
    names = tuple(entries_of(classes))
    renders = {_slot(classes / name / "device"): int(found[1]) for name in names if (found := _RENDER.fullmatch(name))}
    for name in names:
        folder = classes / name / "device"
        if _CARD.fullmatch(name) and read_hex(folder / "vendor") == AMD_VENDOR and _is_driven(folder):
            address = _slot(folder)
            if address is not None:
                yield AmdFunction(address, folder, DrmNodes(name, renders.get(address)))


def _is_driven(folder: Path) -> bool:
    return f"DRIVER={DRIVER}" in (read_text(folder / "uevent") or "").splitlines()


def _slot(folder: Path) -> str | None:
    """Return the PCI address of a DRM device's parent, or None for one that is no PCI function (a partition)."""
    found = _SLOT.search(read_text(folder / "uevent") or "")
    return _address(found[1]) if found else None


def _address(text: str) -> str | None:
    try:
        return normal_pci_address(text)
    except ValueError:
        return None


def read_drm(folder: Path) -> DrmNodes:
    """Return the DRM nodes in the `drm` folder of a device. A number is never made up for one that is missing."""
    names = tuple(entries_of(folder))
    renders = [int(found[1]) for name in names if (found := _RENDER.fullmatch(name))]
    return DrmNodes(next((name for name in names if _CARD.fullmatch(name)), None), renders[0] if renders else None)


def read_partition_cards(roots: Roots) -> dict[int, str]:
    """Return the card of each partition's render node, by minor.

    Partitions are platform devices; kernels before 2024 write amdgpu_xcp.3, newer ones amdgpu_xcp_3.
    """
    folder = Path(roots.sys, "devices/platform")
    cards = {}
    for name in entries_of(folder):
        if name.startswith(("amdgpu_xcp.", "amdgpu_xcp_")):
            drm = read_drm(folder / name / "drm")
            if drm.render_minor is not None and drm.card is not None:
                cards[drm.render_minor] = drm.card
    return cards
