"""PCI functions and small files of sysfs, for the devices of every vendor.

In: roots and PCI addresses. Out: plain values. Nothing here raises for a missing file: None, 0 or nothing is returned.
No more than 1 MiB of a file is read, because the tree may be mounted from anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from dra_driver.hardware.port import Roots
from dra_driver.model.names import normal_pci_address

_PIECE_BYTES, _MAX_BYTES = 4096, 1 << 20
_HEADER_BYTES = 16  # of the configuration space: numbers, command, status, class
MAX_MEMORY_BYTES = 1 << 60  # no device has an exbibyte: a larger number is a file that was misread
_HEXADECIMAL = re.compile(r"(0[xX])?[0-9a-fA-F]{1,8}")
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_text(path: str | os.PathLike[str]) -> str | None:
    """Return a small file's text, stripped, or None when it can't be read.

    Some files of drivers and firmware are padded with NUL bytes; the text ends at the first.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _read_all(fd).decode("utf-8", "replace").partition("\0")[0].strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def read_at_once(path: str) -> bytes:
    """Return what one read of a kernel's file returns, b"" when it can't be read.

    For files of a few lines that the kernel renders as a whole, read within every call.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, _PIECE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_label(path: str | os.PathLike[str]) -> str | None:
    """Return a small file's text as one line of printable characters, or None if it has none."""
    shown = "".join(one if one.isprintable() else " " for one in read_text(path) or "")
    return " ".join(shown.split()) or None


def _read_all(fd: int) -> bytes:
    content = b""
    while (piece := os.read(fd, _PIECE_BYTES)) and len(content) < _MAX_BYTES:
        content += piece  # a read may return less than is left of the file
    return content


def read_hex(path: Path) -> int:
    """Return the number in a file that holds one in hexadecimal, or 0."""
    text = read_text(path) or ""
    return int(text, 16) if _HEXADECIMAL.fullmatch(text) else 0


def read_size(path: Path) -> int | None:
    """Return the number of bytes in a file, or None if it is not a size that memory can have."""
    text = read_text(path) or ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
    return number if 0 < number < MAX_MEMORY_BYTES else None


def entries_of(folder: Path) -> Iterator[str]:
    """Yield the names in a folder in order; none if it can't be read."""
    try:
        yield from sorted(os.listdir(folder))  # noqa: PTH208 - names only, and this runs every two seconds
    except OSError:
        return


def read_driver(path: str) -> str | None:
    """Return the kernel driver that is bound to the PCI function of a folder, or None."""
    try:
        return os.readlink(f"{path}/driver").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for a writer


def is_alive(config: Path) -> bool | None:
    """Return whether a configuration space answers, or None if it can't be read. A dead function reads all ones.

    The vendor's and the device's number alone prove nothing: those of a virtual function are always ones.
    Source: PCI Express, SR-IOV, "VF Configuration Space": Vendor ID and Device ID.
    """
    try:
        with open(config, "rb", opener=_open_at_once) as file:
            header = file.read(_HEADER_BYTES) or b""
    except OSError:
        return None
    return header.strip(b"\xff") != b"" if header else None


def function_folder(roots: Roots, address: str) -> Path:
    """Return the folder of a PCI function below sysfs, whether it exists or not."""
    domain, _, rest = address.partition(":")
    return Path(roots.sys, "bus/pci/devices", f"{int(domain, 16):04x}:{rest}")


def read_physical(folder: Path) -> str | None:
    """Return the address of the physical function behind a virtual one (SR-IOV), or None for any other function."""
    try:
        return normal_pci_address(os.readlink(folder / "physfn").rpartition("/")[2])  # noqa: PTH115
    except (OSError, ValueError):
        return None


def read_numa_node(roots: Roots, address: str) -> int | None:
    """Return the NUMA node of a PCI function, or None if the kernel reports none (-1)."""
    return read_numa(function_folder(roots, address))


def read_numa(folder: Path) -> int | None:
    """Return the NUMA node of the PCI function of a folder, or None if the kernel reports none (-1)."""
    text = read_text(folder / "numa_node") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else None


def read_pci_id(roots: Roots, address: str) -> int | None:
    """Return a PCI function's device and vendor id in one number (0x233010DE), or None where sysfs lacks them."""
    folder = function_folder(roots, address)
    device, vendor = read_hex(folder / "device"), read_hex(folder / "vendor")
    return device << 16 | vendor if device and vendor else None


def read_pcie_root(roots: Roots, address: str) -> str | None:
    """Return the PCIe root complex above a function, in the form `pci0000:64`.

    Source: the standard attribute resource.kubernetes.io/pcieRoot: first such part of the sysfs device's real path.
    """
    return pcie_root_above(function_folder(roots, address))


def pcie_root_above(folder: Path) -> str | None:
    """Return the PCIe root complex above the PCI function to which a folder is a link, or None if it is not a link."""
    if not os.path.islink(folder):  # noqa: PTH114 - does not raise where a folder above can't be searched
        return None
    return next((part for part in Path(os.path.realpath(folder)).parts if _PCIE_ROOT.fullmatch(part)), None)
