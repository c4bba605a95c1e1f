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
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dra_driver.base.machine import FifoCache, Stamp, stamp_of
from dra_driver.base.names import normal_pci_address
from dra_driver.hardware.nvidia.calls import Nvml
from dra_driver.hardware.nvidia.driver_root import LIBRARY_FOLDERS, DriverRoot
from dra_driver.hardware.nvidia.instances import Worker
from dra_driver.hardware.nvidia.queries import NvmlFault, load
from dra_driver.hardware.pci import entries_of, read_at_once, read_driver, read_hex, read_text
from dra_driver.hardware.port import Roots

# What sysfs, procfs and /dev reveal about NVIDIA GPUs without the library

NVIDIA_VENDOR = 0x10DE
GPU_CLASSES = (0x0300, 0x0302)  # VGA controller, 3D controller
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)*)\s")
Nodes = tuple[tuple[str, int], ...]  # names and numbers
_kept_nodes: FifoCache[str, tuple[Stamp, Nodes]] = FifoCache(4)
_SETTLED_NS = 2 * 10**9  # far more than a tick of the clock with which file systems date their changes
_MINOR = re.compile(rb"^Device Minor:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One GPU on the bus. `driver` is the kernel driver bound to it, or None."""

    address: str
    driver: str | None
    is_virtual: bool  # whether it is an SR-IOV virtual function


def own_cgroup(roots: Roots) -> str:
    """Return the folder of this process's cgroup, or the root of all cgroups where it can't be determined."""
    lines = (read_text(Path(roots.proc) / "self/cgroup") or "").splitlines()
    below = next((line.removeprefix("0::") for line in lines if line.startswith("0::/")), "/")
    return f"{roots.sys}/fs/cgroup{below}".rstrip("/")


def read_pci_functions(roots: Roots) -> tuple[PciFunction, ...]:
    """Return the GPUs on the PCI bus in address order, whatever driver they have.

    Source: Linux sysfs-bus-pci; PCI class codes 03.00 and 03.02.
    """
    found = []
    try:
        with os.scandir(os.path.join(roots.sys, "bus/pci/devices")) as entries:  # noqa: PTH118 - see _read_gpu_address
            for entry in entries:
                address = _read_gpu_address(entry.path, entry.inode())
                if address is not None:
                    is_virtual = os.path.islink(f"{entry.path}/physfn")  # noqa: PTH114
                    found.append(PciFunction(address, read_driver(entry.path), is_virtual))
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda function: function.address))


@lru_cache(maxsize=8192)
def _read_gpu_address(path: str, inode: int) -> str | None:  # noqa: ARG001 - a function that is put in anew has another
    """Return a PCI function's address if it is a GPU, else None.

    The result is cached, because servers have hundreds of functions and each needs to be read only once.
    """
    function = Path(path)
    if read_hex(function / "vendor") != NVIDIA_VENDOR or read_hex(function / "class") >> 8 not in GPU_CLASSES:
        return None
    try:
        return normal_pci_address(function.name)
    except ValueError:
        return None


def read_driver_version(roots: Roots) -> str | None:
    """Return the loaded kernel driver's version as the driver writes it ("580.65.06"), or None if none is loaded."""
    path = f"{roots.sys}/module/nvidia/version"
    stamp = stamp_of(path)
    version = _read_version(path, stamp) if stamp is not None else None
    if version:
        return version
    match = _VERSION.search((read_text(f"{roots.proc}/driver/nvidia/version") or "") + " ")
    return match.group(1) if match else None


@lru_cache(maxsize=4)
def _read_version(path: str, stamp: Stamp) -> str | None:  # noqa: ARG001 - a module loaded anew has another file
    """Return a kernel module's version, which each Prepare needs. Sysfs has new files after each load of a module."""
    return read_text(path)


def read_minor(roots: Roots, address: str) -> int | None:
    """Return the minor number that the kernel driver assigned to a GPU, or None when it is not reported."""
    match = _MINOR.search(read_at_once(f"{roots.proc}/driver/nvidia/gpus/{address}/information"))
    return int(match.group(1)) if match else None


def read_driven_gpus(roots: Roots) -> tuple[str, ...]:
    """Return the PCI addresses that the loaded kernel driver drives."""
    return tuple(entries_of(Path(roots.proc, "driver/nvidia/gpus")))


def read_nodes(roots: Roots) -> Nodes:
    """Return NVIDIA's nodes below the dev root with their device numbers (major and minor in one)."""
    names = (name for name in entries_of(Path(roots.dev)) if name.startswith("nvidia"))
    return _numbered(roots, names) + _capability_nodes(roots)


def _capability_nodes(roots: Roots) -> Nodes:
    """Return the nodes of MIG capabilities, of which there are hundreds.

    They are read again only if their folder has changed, which it does whenever a node is made, removed or replaced.
    Right after a change the folder's time proves nothing, because a second change may leave it as it is.
    """
    path = f"{roots.dev}/nvidia-caps"
    stamp = stamp_of(path)
    kept = _kept_nodes.get(path)
    if kept is not None and kept[0] == stamp:
        return kept[1]
    nodes = _numbered(roots, (f"nvidia-caps/{name}" for name in entries_of(Path(path))))
    if stamp is not None and stamp.mtime_ns < time.time_ns() - _SETTLED_NS:
        _kept_nodes.keep(path, (stamp, nodes))
    return nodes


def _numbered(roots: Roots, names: Iterable[str]) -> Nodes:
    nodes = []
    for name in names:
        try:
            nodes.append((name, os.stat(f"{roots.dev}/{name}").st_rdev))  # noqa: PTH116 - hundreds, every two seconds
        except OSError:
            continue
    return tuple(nodes)


def read_majors(roots: Roots) -> tuple[str, ...]:
    """Return the lines of /proc/devices that list NVIDIA's majors."""
    text = read_text(Path(roots.proc, "devices")) or ""
    return tuple(sorted({line.strip() for line in text.splitlines() if "nvidia" in line}))


def has_driver_traces(roots: Roots) -> bool:
    """Return whether there are traces of a driver, even if no PCI function is visible."""
    return Path(roots.proc, "driver/nvidia").is_dir() or Path(roots.dev, "nvidiactl").exists()


SONAME = "libnvidia-ml.so.1"


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
    root = DriverRoot(roots.driver_mount, roots.driver)
    for folder in ("", *LIBRARY_FOLDERS):
        path = Path(roots.driver_mount, folder.lstrip("/"), soname)
        resolved = None if path.is_file() else root.resolve(f"{folder}/{soname}")
        if resolved is not None:  # by an absolute link, as on NixOS
            path = Path(root.here(resolved))
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
        version = read_driver_version(roots)
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
    version = read_driver_version(roots)
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
