"""Compile the fake library, and define how its devices behave."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SONAME = "libcuda.so.1"
SOURCE = Path(__file__).with_name("cuda.c")
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-fvisibility=hidden")


class FakeCuda:
    """`folder`/libcuda.so.1 and what its devices do.

    Modes: passes, corrupts (copied data), miscomputes, hangs, crashes, hoards (1 GiB), 802 and jit (errors), slow and
    decays (memory loses a bit; both at level 2), context-CODE and launch-CODE (that error of the driver API).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "contexts").mkdir(parents=True)
        shutil.copyfile(_built(), folder / SONAME)
        self._devices: dict[str, tuple[str, str]] = {}

    def set(self, uuid: str, pci: str, mode: str = "passes") -> None:
        """Add a device that behaves like this, or change how it behaves."""
        self._devices[uuid] = (pci, mode)
        lines = "".join(f"{one} {pci.upper()} {does}\n" for one, (pci, does) in self._devices.items())
        new = self.folder / "devices.new"
        new.write_text(lines)
        new.replace(self.folder / "devices")

    def calls(self, name: str = "cuDevicePrimaryCtxRetain") -> list[str]:
        """Return the UUID of each call of this name."""
        file = self.folder / "calls"
        rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [row[2] for row in rows if row[1] == name and len(row) > 2]

    def contexts(self) -> list[int]:
        """Return the processes that have a context now."""
        return [int(one.name) for one in (self.folder / "contexts").iterdir() if _is_alive(int(one.name))]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _built() -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake libcuda.so.1 can't be built")
    key = hashlib.sha256(SOURCE.read_bytes() + "\n".join(FLAGS).encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir(), f"fake-cuda-{os.getuid()}", key, SONAME)
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            made = Path(work, SONAME)
            command = [compiler, *FLAGS, f"-Wl,-soname,{SONAME}", "-o", str(made), str(SOURCE), "-ldl"]
            subprocess.run(command, check=True, timeout=120)
            made.replace(kept)
    return kept
