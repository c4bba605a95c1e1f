"""A node with AMD's GPUs: the files of sysfs, the topology and the device nodes, laid out as kernels lay them out.

Numbers are those of captured machines where a test is about a real part; the layout (PCI, DRM, partitions and topology
together) is composed, because no capture has all of them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.port import Roots
from tests.support.nodes.fake_node import make_node

KFD = "class/kfd/kfd/topology/nodes"
RENDER_GROUP = 109


@dataclass
class AmdCard:
    """One GPU. `partitions` are the render minors of its partitions; the first is the GPU's own."""

    address: str
    number: int = 0
    render_minor: int = 128
    device_id: int = 0x74A1
    modes: tuple[str, str] | None = ("SPX", "NPS1")
    memory_bytes: int = 192 << 30
    host_bytes: int = 251 << 30
    bank_bytes: int | None = None  # of each node of the topology; None: the memory
    simd_count: int = 1216
    unique_id: int = 0x93BB3629C01AEA1C
    hive: int = 0
    numa_node: int = 0
    partitions: tuple[int, ...] = ()
    is_topology_there: bool = True
    has_part_bits: bool = False  # as in newer kernels, whose topology has bits of their own for the part
    files: dict[str, str] = field(default_factory=dict)  # further files of the PCI function


class AmdTree:
    """The trees of one node below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cards: list[AmdCard] = []
        self.xcp = "amdgpu_xcp_{}"
        for below in ("sys/bus/pci/devices", "sys/bus/pci/drivers/amdgpu", "dev/dri"):
            (folder / below).mkdir(parents=True, exist_ok=True)

    @property
    def roots(self) -> Roots:
        """Return the roots of this node."""
        return Roots(sys=str(self.folder / "sys"), proc=str(self.folder / "proc"), dev=str(self.folder / "dev"))

    def write(self, *cards: AmdCard, version: str | None = "6.16.13") -> AmdTree:
        """Lay the node out with these cards, instead of what was there."""
        for below in ("sys", "dev"):
            shutil.rmtree(self.folder / below)
            (self.folder / below).mkdir()
        return self.add(*cards, version=version)

    def add(self, *cards: AmdCard, version: str | None = "6.16.13") -> AmdTree:
        """Add these cards to the trees, beside the cards of other vendors."""
        for below in ("sys/bus/pci/devices", "sys/bus/pci/drivers/amdgpu", "dev/dri"):
            (self.folder / below).mkdir(parents=True, exist_ok=True)
        if version is not None:
            self._put("module/amdgpu/version", version)
        self.cards = list(cards)
        self._put(f"{KFD}/0/properties", _lines({"cpu_cores_count": 96, "simd_count": 0}))
        self._node("kfd", 235, 0)
        for card in cards:
            self._write_function(card)
        self._write_topology()
        return self

    def exchange(self, *cards: AmdCard) -> AmdTree:
        """Replace AMD's part of the node by these cards, and keep the parts of other vendors."""
        for card in self.cards:
            shutil.rmtree(self.function(card))
            for below in ("devices", "drivers/amdgpu"):
                (self.folder / "sys/bus/pci" / below / card.address).unlink()
        for below in ("class/kfd", "devices/platform"):
            shutil.rmtree(self.folder / "sys" / below, ignore_errors=True)
        return self.add(*cards)

    def function(self, card: AmdCard) -> Path:
        """Return the folder of a card's PCI function."""
        return self.folder / "sys/devices/pci0000:00" / card.address

    def _write_function(self, card: AmdCard) -> None:
        folder = self.function(card)
        values = {
            "vendor": "0x1002",
            "device": f"0x{card.device_id:04x}",
            "revision": "0x00",
            "class": "0x120000",
            "numa_node": str(card.numa_node),
            "mem_info_vram_total": str(card.memory_bytes),
            "mem_info_gtt_total": str(card.host_bytes),
            "unique_id": f"{card.unique_id:016x}",
            "vbios_version": "113-M3000100-102",
            "uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={card.address}",
            **card.files,
        }
        if card.modes:
            values |= {"current_compute_partition": card.modes[0], "current_memory_partition": card.modes[1]}
        for name, text in values.items():
            self._put_in(folder, name, text)
        self._drm(folder, f"card{card.number}", card.render_minor)
        driver = self.folder / "sys/bus/pci/drivers/amdgpu"
        _link(self.folder / "sys/bus/pci/devices" / card.address, folder)
        _link(driver / card.address, folder)
        _link(folder / "driver", driver)
        for index, minor in enumerate(card.partitions[1:]):
            place = self.folder / "sys/devices/platform" / self.xcp.format(card.number * 8 + index)
            self._drm(place, f"card{card.number + 1 + index}", minor)

    def _drm(self, folder: Path, card: str, minor: int) -> None:
        for name, number in ((card, int(card.removeprefix("card"))), (f"renderD{minor}", minor)):
            (folder / "drm" / name).mkdir(parents=True)
            self._node(f"dri/{name}", 226, number)

    def _write_topology(self) -> None:
        number = 1
        for card in self.cards if all(card.is_topology_there for card in self.cards) else ():
            minors = card.partitions or (card.render_minor,)
            domain, bus, rest = card.address.split(":")
            for part, minor in enumerate(minors):
                place = int(bus, 16) << 8 | int(rest.split(".")[0], 16) << 3 | int(rest.split(".")[1])
                values = {
                    "cpu_cores_count": 0,
                    "simd_count": card.simd_count // len(minors),
                    "simd_per_cu": 4,
                    "gfx_target_version": 90402,
                    "vendor_id": 4098,
                    "device_id": card.device_id,
                    "location_id": place | (part << 28 if card.has_part_bits else part),
                    "domain": int(domain, 16),
                    "drm_render_minor": minor,
                    "unique_id": card.unique_id,
                    "hive_id": card.hive,
                }
                self._put(f"{KFD}/{number}/properties", _lines(values))
                bank = card.memory_bytes // len(minors) if card.bank_bytes is None else card.bank_bytes
                self._put(f"{KFD}/{number}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {bank}\nflags 0")
                number += 1

    def _put(self, path: str, text: str) -> None:
        self._put_in(self.folder / "sys", path, text)

    @staticmethod
    def _put_in(folder: Path, path: str, text: str) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text + "\n")

    def _node(self, name: str, major: int, minor: int) -> None:
        make_node(self.folder / "dev" / name, major, minor)


def _lines(values: dict[str, int]) -> str:
    return "\n".join(f"{name} {value}" for name, value in values.items())


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
