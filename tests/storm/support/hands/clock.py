"""A wall clock for agents that can be set: a small library before the C library, and a file with the shift."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The clock of all processes that are started with its variables."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler is not None, "needs a C compiler"
        self._library, self._file = folder / "clock.so", folder / "clock"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(_SOURCE), "-o", str(self._library)], check=True)
        self._file.write_bytes(struct.pack("q", 0))
        with self._file.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)

    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(self._library), "STORM_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Shift the clock by so many seconds from the machine's."""
        self._shift[:] = struct.pack("q", seconds)
