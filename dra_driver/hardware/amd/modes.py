"""How a GPU is partitioned now: its compute mode and its memory mode.

A GPU without the files can't be partitioned. If a file can't be read, or contains an unknown word, the GPU's partitions
are unknown, so no part of it may be offered.

Source: Linux Documentation/gpu/amdgpu (current_compute_partition, current_memory_partition), amdgpu_gfx.c.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.pci import read_text

COMPUTE_MODES = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}  # the most partitions that a mode makes
MEMORY_MODES = ("NPS1", "NPS2", "NPS3", "NPS4", "NPS6", "NPS8")


class ModeUnknownError(Exception):
    """The GPU has a mode that can't be determined; the text says why."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of a GPU, None where it has no such mode."""

    compute: str | None = None
    memory: str | None = None

    @property
    def is_whole(self) -> bool | None:
        """Return whether the GPU is one device, or None if the GPU does not report it."""
        return None if self.compute is None else self.compute == "SPX"


def read_modes(folder: Path) -> Modes:
    """Return the modes of the GPU of a PCI function's folder. Raises: ModeUnknownError."""
    return Modes(
        _read(folder / "current_compute_partition", tuple(COMPUTE_MODES)),
        _read(folder / "current_memory_partition", MEMORY_MODES),
    )


def _read(path: Path, known: tuple[str, ...]) -> str | None:
    text = read_text(path)
    if text is None:
        if os.path.lexists(path):
            raise ModeUnknownError(f"{path.name} can't be read")
        return None
    word = text.upper()
    if word not in known:
        raise ModeUnknownError(f"{path.name} contains {text[:32]!r}, which is none of {', '.join(known)}")
    return word
