"""The identity of a PCI function, whatever drives it: its numbers in sysfs, and its serial number where it has one.

In: roots and an address. Out: values read now, which are the same before and after a virtual machine had the function.
A vendor's own identity (a UUID, a unique id) is only there while the vendor's driver is; Intel's GPUs and Gaudi cards
have none. Root alone can read the part of the configuration space that has the serial number.
Source: PCI Express Base Specification, "Device Serial Number Extended Capability" (id 0003h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import function_folder, read_text
from dra_driver.hardware.port import Roots

_NUMBERS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
_SPACE_BYTES, _EXTENDED = 4096, 0x100  # of the configuration space: all of it, and where the extended part begins
_SERIAL_NUMBER = 0x0003
_EMPTY = (b"\0" * 8, b"\xff" * 8)


@dataclass(frozen=True, slots=True)
class PciIdentity:
    """`numbers` are those in sysfs, in one text; `serial` is the serial number, "" if none can be read."""

    numbers: str = ""
    serial: str = ""

    def difference_from(self, before: PciIdentity) -> str:
        """Return in words how this differs from what was read before; "" where it does not, or nothing is known.

        >>> PciIdentity("8086:56c0", "00-11").difference_from(PciIdentity("8086:56c0", "00-22"))
        'its serial number is 00-11, but was 00-22'
        """
        if before.numbers and self.numbers != before.numbers:
            return f"its PCI numbers are {self.numbers or 'missing'}, but were {before.numbers}"
        if before.serial and self.serial != before.serial:
            return f"its serial number is {self.serial or 'missing'}, but was {before.serial}"
        return ""


UNKNOWN = PciIdentity()


def read_identity(roots: Roots, address: str) -> PciIdentity:
    """Return what identifies a function now; nothing for one that is not on the bus."""
    folder = function_folder(roots, address)
    found = [f"{name} {value}" for name in _NUMBERS if (value := read_text(folder / name))]
    return PciIdentity(", ".join(found)[:200], _serial_in(_space(folder / "config")))


def _space(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(_SPACE_BYTES) or b""
    except OSError:
        return b""


def _serial_in(space: bytes) -> str:
    for offset, number in _capabilities(space):
        value = space[offset + 4 : offset + 12]
        if number == _SERIAL_NUMBER and len(value) == len(_EMPTY[0]) and value not in _EMPTY:
            return value[::-1].hex("-")
    return ""


def _capabilities(space: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and number of each extended capability; a list that leads nowhere, or in a circle, ends there."""
    offset, seen = _EXTENDED, set[int]()
    while _EXTENDED <= offset <= len(space) - 4 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        yield offset, header & 0xFFFF
        offset = header >> 20 & 0xFFC
