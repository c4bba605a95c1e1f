"""RAS: the errors that a GPU's blocks counted since the driver was loaded, and its bad pages of memory.

In: the folder of a PCI function. Out: counts and states. Both are None if no file shows them, as on most Radeons.

Source: Linux Documentation/gpu/amdgpu/ras (`ue:` and `ce:` lines of *_err_count and of aca_*; in gpu_vram_bad_pages R
is retired, P pending, F failed).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dra_driver.hardware.pci import entries_of, read_text

_COUNT = re.compile(r"^(ue|ce):\s*(\d{1,18})\s*$", re.MULTILINE)
_BAD_PAGE = re.compile(r"^0x[0-9a-fA-F]+\s*:\s*0x[0-9a-fA-F]+\s*:\s*([RPF])\s*$", re.MULTILINE)


CORRECTED, UNCORRECTED = "ce", "ue"
Counts = Mapping[tuple[str, str], int]


def block_counts(function: Path) -> Counts:
    """Return the errors of each block, by kind and block ("umc"), without those that no file counts.

    Newer kernels show a block under two names, `umc_err_count` and `aca_umc`: the larger of the two counts.
    """
    blocks: dict[tuple[str, str], int] = {}
    for name in entries_of(function / "ras"):
        if name.endswith("_err_count") or name.startswith("aca_"):
            block = name.removesuffix("_err_count").removeprefix("aca_")
            for kind, count in _COUNT.findall(read_text(function / "ras" / name) or ""):
                blocks[kind, block] = max(int(count), blocks.get((kind, block), 0))
    return blocks


def total_errors(counts: Counts, kind: str) -> int | None:
    """Return the errors of a kind of all blocks, None where no file counts them."""
    found = [count for (one, _), count in counts.items() if one == kind]
    return sum(found) if found else None


def bad_pages(function: Path) -> frozenset[str] | None:
    """Return the states that bad pages of memory are in, None where the GPU does not list them."""
    text = read_text(function / "ras/gpu_vram_bad_pages")
    return None if text is None else frozenset(_BAD_PAGE.findall(text))
