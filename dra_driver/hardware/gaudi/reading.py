"""One discovery of Gaudi accelerators: the functions that the kernel driver drives, and their numbers.

In: roots. Out: `GaudiCard`s in PCI order, and problems. A card without a number or without its slot is left out,
because neither its nodes nor the number by which programs refer to it would be known.

Source: Linux Documentation/ABI/testing/sysfs-driver-habanalabs (status, module_id, pci_addr); PCI ID database and
Intel's product pages (models and their memory).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware import pci
from dra_driver.hardware.facts import Problem
from dra_driver.hardware.gaudi.facts import GaudiCard
from dra_driver.hardware.port import Roots
from dra_driver.model.names import normal_pci_address
from dra_driver.model.vendors import registered_as

GAUDI = registered_as("gaudi")
DRIVERS = ("habanalabs",)
_ACCEL, _VERBS = re.compile(r"accel(\d{1,4})"), re.compile(r"uverbs\d{1,4}")
_WORD = re.compile(r"[a-z][a-z ]{0,31}")
_OPERATIONAL = "operational"
_GENERATIONS = (  # device ids, model, memory in GiB
    ((0x1000, 0x1001, 0x1010, 0x1011), "Gaudi", 32),
    ((0x1020,), "Gaudi2", 96),
    ((0x1030, 0x1060, 0x1061, 0x1062, 0x1063), "Gaudi3", 128),
)
_MODELS = {device_id: (name, size << 30) for ids, name, size in _GENERATIONS for device_id in ids}


@dataclass(slots=True)
class GaudiReading:
    """The result of one discovery, while it is made."""

    cards: list[GaudiCard] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def functions_of(roots: Roots) -> dict[str, Path]:
    """Return the folder of each PCI function that the kernel driver drives, by address."""
    folder = Path(roots.sys, "bus/pci/drivers/habanalabs")
    found = {}
    for name in pci.entries_of(folder):
        address = _address(name)
        if address is not None:
            found[address] = folder / name
    return dict(sorted(found.items()))


def read_cards(roots: Roots) -> GaudiReading:
    """Return every accelerator that a container can open, and a problem for each that it can't."""
    reading = GaudiReading()
    others = _numbers_by_address(roots)
    for address, folder in functions_of(roots).items():
        number, place = _number_below(folder / "accel"), folder
        if number is None and address in others:
            number, place = others[address]
        module = _decimal(folder / "module_id", place / "module_id")
        if number is None or module is None:
            missing = "number below /dev/accel" if number is None else "module_id"
            text = f"the accelerator has no {missing}: it is left out"
            reading.problems.append(Problem("hardware.fact-unreadable", address, text))
            continue
        card = _card(address, folder, place, number, module)
        reading.cards.append(card)
        if card.is_healthy is False:
            text = f"the kernel driver reports {card.status!r}, not {_OPERATIONAL!r}: it is published as not healthy"
            reading.problems.append(Problem("hardware.not-operational", address, text))
    return reading


def _card(address: str, folder: Path, place: Path, number: int, module: int) -> GaudiCard:
    device_id = pci.read_hex(folder / "device") or None
    model, memory = _MODELS.get(device_id or 0, (None, None))
    verbs = next((name for name in pci.entries_of(folder / "infiniband_verbs") if _VERBS.fullmatch(name)), "")
    status = (pci.read_text(folder / "status") or pci.read_text(place / "status") or "").lower()
    return GaudiCard(
        uuid=address,
        pci_address=address,
        minor=number,
        memory_bytes=memory,
        product_name=f"Intel {model}" if model else None,
        numa_node=pci.read_numa(folder),
        pcie_root=pci.pcie_root_above(folder),
        pci_id=device_id << 16 | GAUDI.pci_vendor if device_id else None,
        nodes=(f"accel/accel{number}", f"accel/accel_controlD{number}"),
        device_id=device_id,
        model=model,
        module_id=module,
        verbs=verbs,
        status=status if _WORD.fullmatch(status) else "unknown" if status else "",
    )


def _numbers_by_address(roots: Roots) -> dict[str, tuple[int, Path]]:
    """Return, by PCI address, the number and the folder of each accelerator that its function's folder does not show.

    Older drivers put them among the virtual devices; the class shows those, too. A file has their PCI address.
    """
    found: dict[str, tuple[int, Path]] = {}
    for below in ("devices/virtual/accel", "class/accel"):
        for number, place in _accels(Path(roots.sys, below)):
            address = _address(pci.read_text(place / "pci_addr") or "")
            if address is not None:
                found.setdefault(address, (number, place))
    return found


def _accels(folder: Path) -> Iterator[tuple[int, Path]]:
    for name in pci.entries_of(folder):
        number = _ACCEL.fullmatch(name)
        if number:
            yield int(number[1]), folder / name / "device"
            yield int(number[1]), folder / name  # the class links to the PCI function itself


def _number_below(folder: Path) -> int | None:
    names = (_ACCEL.fullmatch(name) for name in pci.entries_of(folder))
    return next((int(found[1]) for found in names if found), None)


def _decimal(*paths: Path) -> int | None:
    texts = (pci.read_text(path) or "" for path in paths)
    return next((int(text) for text in texts if text.isascii() and text.isdigit() and len(text) <= 4), None)


def _address(text: str) -> str | None:
    try:
        return normal_pci_address(text)
    except ValueError:
        return None
