"""The library: where it is, and opening it, or explaining why it can't be used.

In: roots, the environment, and a name (libnvidia-ml.so.1 unless another is named). Out: paths to try, in order (below
the driver root's mount, in LD_LIBRARY_PATH, where the loader finds it); the library file that was initialised, or
`NotOpen` with a text that states what this node waits for. The folders are those in which NVIDIA's packages for the
large distributions put their libraries.

Every discovery tries again, so a driver that is installed late is found without a restart. A library that was loaded
once stays loaded, and the loader never loads another one from the same path; `Opened.is_outdated` checks whether it is
still the right one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.nvidia import sysfs
from dra_driver.hardware.nvidia.calls import Nvml
from dra_driver.hardware.nvidia.queries import NvmlFault, load
from dra_driver.hardware.nvidia.worker import Worker
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


@dataclass(frozen=True, slots=True)
class Opened:
    """A library that this process has loaded, and the kernel driver when it was initialised (None: it was not)."""

    file: LibraryFile | None
    driver_version: str | None

    def is_outdated(self, roots: Roots) -> bool:
        """Return whether the kernel has another driver now, or another library has replaced this one on disk."""
        version = sysfs.read_driver_version(roots)
        if version and self.driver_version and version != self.driver_version:
            return True
        found = library_file(self.file.path) if self.file else None
        return found is not None and found != self.file


LATE = "library-not-answering"


class NotOpen(Exception):
    """The library can't be used now. `code` is a problem's code, and the text states what this node waits for.

    `is_late` is true while a call has not returned; it may still do so.
    """

    def __init__(self, code: str, text: str, loaded: Opened | None = None) -> None:
        super().__init__(text)
        self.code = f"hardware.{code}"
        self.text = text
        self.loaded = loaded
        self.is_late = code == LATE


def open_library(roots: Roots, driver: Worker) -> Opened:
    """Load and initialise the first library that can be loaded. Runs in the thread of `driver`.

    Raises: NotOpen.
    """
    version = sysfs.read_driver_version(roots)
    path = _load_first(roots, driver)
    try:
        Nvml(driver.mark).init()
    except NvmlFault as fault:
        raise _not_open(fault, version, Opened(library_file(path), None)) from None
    return Opened(library_file(path), version)


def _load_first(roots: Roots, driver: Worker) -> str:
    refusals = []
    for candidate in candidates(roots):
        driver.mark("dlopen")
        try:
            load(candidate)
        except OSError as error:
            if candidate != SONAME:
                refusals.append(str(error))
            continue
        return candidate if candidate != SONAME else mapped_file() or candidate
    if refusals:
        raise NotOpen("library-unusable", f"a usable {SONAME}: {'; '.join(refusals)}")
    where = f"below {roots.driver_mount} nor by the loader" if has_own_mount(roots) else "by the loader"
    neither = "found neither " if has_own_mount(roots) else "not found "
    raise NotOpen("library-missing", f"the NVIDIA driver to be installed: {SONAME} was {neither}{where}")


def _not_open(fault: NvmlFault, version: str | None, loaded: Opened) -> NotOpen:
    if fault.name == "DRIVER_NOT_LOADED":
        text = "the NVIDIA kernel driver to be loaded (NVML: DRIVER_NOT_LOADED)"
        return NotOpen("driver-not-loaded", text, loaded)
    if fault.name == "LIB_RM_VERSION_MISMATCH":
        kernel = f"the loaded kernel driver ({version})" if version else "the loaded kernel driver"
        text = f"{SONAME} and {kernel} to have the same version; reload the driver"
        return NotOpen("driver-mismatch", text, loaded)
    return NotOpen("library-failed", f"NVML to start; it reports {fault}", loaded)
