"""This machine: the boot, whose id shows whether earlier changes to the hardware can still be in effect."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = "sys/kernel/random/boot_id"


def boot_id_file(proc_root: str | os.PathLike[str]) -> Path:
    """Return the path of the boot id's file below a mount of /proc."""
    return Path(proc_root, _BOOT_ID)


def read_boot_id(proc_root: str | os.PathLike[str]) -> str:
    """Return the id of this boot. Raises: OSError where it can't be read."""
    return boot_id_file(proc_root).read_text(encoding="ascii").strip()
