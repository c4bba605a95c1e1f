"""Where a library of the driver is: below the driver root's mount, in LD_LIBRARY_PATH, or where the loader finds it.

In: roots, the environment, and a name (libnvidia-ml.so.1 unless another is named). Out: paths to try, in order. Never
loads anything. The folders are those in which NVIDIA's packages for the large distributions put their libraries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.port import Roots
from dra_driver.model.stamp import stamp_of

SONAME = "libnvidia-ml.so.1"
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
FOLDERS = (
    "",
    "usr/lib64",
    *(f"usr/lib/{triplet}" for triplet in _TRIPLETS),
    *(f"usr/lib/{triplet}/nvidia/current" for triplet in _TRIPLETS),
    "usr/lib64/nvidia/current",
    "lib64",
    *(f"lib/{triplet}" for triplet in _TRIPLETS),
    *(f"lib/{triplet}/nvidia/current" for triplet in _TRIPLETS),
)


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library file as it was when it was looked at: an upgrade of the driver changes its size or its time.

    Device and inode don't count, because a driver container that is restarted mounts the same library again.
    """

    path: str
    size_bytes: int
    mtime_ns: int


def library_file(path: str) -> LibraryFile | None:
    """Describe a library file; None where there is none."""
    stamp = stamp_of(path)
    return None if stamp is None else LibraryFile(path, stamp.size, stamp.mtime_ns)


def has_own_mount(roots: Roots) -> bool:
    """Return whether the driver root is mounted apart from this process's own root."""
    return os.path.normpath(roots.driver_mount) != "/"


def below_mount(roots: Roots, soname: str = SONAME) -> Iterator[str]:
    """Yield the library files below the driver root's mount."""
    for folder in FOLDERS:
        path = Path(roots.driver_mount, folder, soname)
        if path.is_file():
            yield str(path)


def in_library_path(soname: str = SONAME) -> Iterator[str]:
    """Yield the library files in LD_LIBRARY_PATH's folders.

    The loader would search those too, but a folder that was once missing is never searched again.
    """
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        path = Path(folder or ".", soname)
        if folder and path.is_file():
            yield str(path)


def candidates(roots: Roots, soname: str = SONAME) -> Iterator[str]:
    """Yield what to load, best first. The bare soname means the loader's own search."""
    if has_own_mount(roots):
        yield from below_mount(roots, soname)
        yield from in_library_path(soname)
        yield soname
    else:
        yield from in_library_path(soname)
        yield soname
        yield from below_mount(roots, soname)


def mapped_file(soname: str = SONAME) -> str | None:
    """Return the file from which this process has the library mapped."""
    stem = soname.rpartition(".")[0]
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path and stem in Path(path).name:
                return "/" + path
    return None
