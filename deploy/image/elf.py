"""The architecture of ELF files, read from their headers.

In: a tree of files. Out: for each ELF file its machine and class. Nothing is run.
Source: System V Application Binary Interface, chapter 4, "ELF Header".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF"
_HEADER_BYTES = 20  # up to and with e_machine
_CLASSES = {1: 32, 2: 64}
_BYTE_ORDERS = {1: "little", 2: "big"}


@dataclass(frozen=True, slots=True)
class ElfHeader:
    """The part of an ELF header that describes the machine that can run the file."""

    machine: int
    bits: int
    byte_order: str


def read_header(content: bytes) -> ElfHeader | None:
    """Return the header at the start of a file; None if the file is not ELF.

    Raises: ValueError for a file that starts as ELF does and then breaks off or has unknown values.
    """
    if content[:4] != _MAGIC:
        return None
    if len(content) < _HEADER_BYTES:
        raise ValueError(f"an ELF header of {len(content)} bytes")
    bits, order = _CLASSES.get(content[4]), _BYTE_ORDERS.get(content[5])
    if bits is None or order is None:
        raise ValueError(f"ELF class {content[4]}, byte order {content[5]}")
    machine = int.from_bytes(content[18:20], "little" if order == "little" else "big")
    return ElfHeader(machine, bits, order)


def elf_files(tree: Path) -> Iterator[tuple[Path, ElfHeader]]:
    """Yield every ELF file below a folder with its header; links are not followed. Raises: ValueError."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                content = file.read(_HEADER_BYTES)
            try:
                header = read_header(content)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            if header is not None:
                yield path, header


def foreign_files(tree: Path, machine: int, bits: int) -> list[str]:
    """Return the ELF files below a folder that are for another machine, with their machines. Raises: ValueError."""
    wanted = ElfHeader(machine, bits, "little")
    return [f"{path.relative_to(tree)}: {header}" for path, header in elf_files(tree) if header != wanted]
