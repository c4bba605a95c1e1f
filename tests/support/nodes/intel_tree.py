"""A node with Intel's GPUs: the files of sysfs and the device nodes, laid out as kernels lay them out (composed)."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.port import Roots
from tests.support.nodes.fake_node import make_node


@dataclass
class IntelCard:
    """One GPU, or a virtual function of the one at `physical`."""

    address: str
    number: int = 0
    device_id: int = 0xE20B
    driver: str = "xe"
    memory_bytes: int = 12 << 30
    has_render: bool = True
    physical: str = ""
    virtuals: int = 0
    files: dict[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[str]:
        return [f"card{self.number}", *([f"renderD{128 + self.number}"] if self.has_render else [])]


class IntelTree:
    """The trees of one node below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def roots(self) -> Roots:
        return Roots(sys=str(self.folder / "sys"), proc=str(self.folder / "proc"), dev=str(self.folder / "dev"))

    def function(self, address: str) -> Path:
        return self.folder / "sys/devices/pci0000:00" / address

    def write(self, *cards: IntelCard, has_dmem: bool = True) -> IntelTree:
        """Lay the node out with these cards, instead of what was there."""
        for below in ("sys", "dev"):
            shutil.rmtree(self.folder / below, ignore_errors=True)
        return self.add(*cards, has_dmem=has_dmem)

    def add(self, *cards: IntelCard, has_dmem: bool = True) -> IntelTree:
        """Add these cards to what other vendors have in the same trees."""
        for below in ("sys/bus/pci/devices", "dev/dri"):
            (self.folder / below).mkdir(parents=True, exist_ok=True)
        for card in cards:
            self._write(card)
        if has_dmem:
            lines = [f"drm/{card.address}/vram0 {card.memory_bytes}" for card in cards if card.memory_bytes]
            (self.folder / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
            (self.folder / "sys/fs/cgroup/dmem.capacity").write_text("\n".join([*lines, "drm/x/stolen 1"]) + "\n")
        return self

    def _write(self, card: IntelCard) -> None:
        folder = self.function(card.address)
        values = {
            "vendor": "0x8086",
            "device": f"0x{card.device_id:04x}",
            "class": "0x030000",
            "numa_node": "-1",
            "uevent": f"DRIVER={card.driver}\nPCI_SLOT_NAME={card.address}",
            **({"sriov_totalvfs": str(card.virtuals)} if card.virtuals else {}),
            **card.files,
        }
        for name, text in values.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")
        for name in card.nodes:
            (folder / "drm" / name).mkdir(parents=True, exist_ok=True)
            make_node(self.folder / "dev/dri" / name, 226, card.number + (128 if name.startswith("render") else 0))
        driver = self.folder / "sys/bus/pci/drivers" / card.driver
        links = [
            (self.folder / "sys/bus/pci/devices" / card.address, folder),
            (driver / card.address, folder),
            (folder / "driver", driver),
        ]
        if card.physical:
            links.append((folder / "physfn", self.function(card.physical)))
        for link, target in links:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(target, link.parent))
