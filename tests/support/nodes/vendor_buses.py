"""A PCI bus with GPUs of AMD and Intel on a simulated kernel, which adds and removes their nodes with their drivers."""

from __future__ import annotations

import re
from pathlib import Path

from dra_driver.hardware.simulated.kernel import AUDIO_CLASS, SimulatedKernel
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree

USB_CLASS, TYPE_C_CLASS, DISPLAY_CLASS, ACCELERATOR_CLASS = 0x0C0330, 0x0C8000, 0x030000, 0x120000
OWN_DRIVERS = ("amdgpu", "i915", "xe")


class DrmKernel(SimulatedKernel):
    """A kernel whose GPUs lose their DRM nodes, and their nodes of the topology, with their own driver."""

    def _unbind(self, address: str, driver: str) -> None:
        super()._unbind(address, driver)
        self._move(address, driver, is_leaving=True)

    def _link_driver(self, address: str, driver: str) -> None:
        super()._link_driver(address, driver)
        self._move(address, driver, is_leaving=False)

    def _move(self, address: str, driver: str, *, is_leaving: bool) -> None:
        home = self._device(address)
        there, gone = (home / "drm", home / ".drm")[:: 1 if is_leaving else -1]
        if driver in OWN_DRIVERS and there.is_dir():
            there.rename(gone)
        topology = self.folder / "sys/class/kfd/kfd/topology"
        here, away = (topology / "nodes", topology / ".away")[:: 1 if is_leaving else -1]
        for node in here.glob("*") if driver == "amdgpu" else ():
            location = re.search(r"location_id (\d+)", (node / "properties").read_text())
            if location and int(location[1]) >> 8 == int(address.split(":")[1], 16):
                away.mkdir(exist_ok=True)
                node.rename(away / node.name)


def new_amd(folder: Path, *cards: AmdCard, pci_class: int = ACCELERATOR_CLASS) -> DrmKernel:
    """Return a bus of cards with `amdgpu`, each in a group of its own that has the number of its bus."""
    AmdTree(folder).write(*cards)
    kernel = DrmKernel(folder)
    kernel.add_driver("vfio-pci")
    for card in cards:
        pci_id = card.device_id << 16 | 0x1002
        kernel.add_function(card.address, "amdgpu", group_of(card.address), pci_class=pci_class, pci_id=pci_id)
    return kernel


def add_radeon_companions(kernel: SimulatedKernel, address: str) -> tuple[str, str, str]:
    """Add the audio, USB and USB-C functions of a Radeon RX 6900 XT (Navi 21) to its group; return their addresses."""
    slot, group = address[:-1], group_of(address)
    kernel.add_function(f"{slot}1", "snd_hda_intel", group, pci_class=AUDIO_CLASS, pci_id=0xAB281002)
    kernel.add_function(f"{slot}2", "xhci_hcd", group, pci_class=USB_CLASS, pci_id=0x73A61002)
    kernel.add_function(f"{slot}3", "i2c-designware-pci", group, pci_class=TYPE_C_CLASS, pci_id=0x73A41002)
    return f"{slot}1", f"{slot}2", f"{slot}3"


def new_intel(folder: Path, *cards: IntelCard, undriven: tuple[str, ...] = ()) -> DrmKernel:
    """Return a bus of cards with `xe`, each in a group of its own; `physical` makes one a virtual function."""
    IntelTree(folder).write()
    return add_intel(DrmKernel(folder), *cards, undriven=undriven)


def add_intel(kernel: DrmKernel, *cards: IntelCard, undriven: tuple[str, ...] = ()) -> DrmKernel:
    """Add such cards to a bus that has others already."""
    IntelTree(kernel.folder).add(*(card for card in cards if card.address not in undriven))
    kernel.add_driver("vfio-pci")
    for number, card in enumerate(cards):
        pci_id, driver = card.device_id << 16 | 0x8086, "" if card.address in undriven else card.driver
        if card.physical:
            kernel.add_virtual_function(card.address, card.physical, driver, 60 + number, pci_id=pci_id)
        else:
            kernel.add_function(card.address, driver, 60 + number, pci_class=DISPLAY_CLASS, pci_id=pci_id)
    return kernel


def group_of(address: str) -> int:
    return int(address.split(":")[1], 16)
