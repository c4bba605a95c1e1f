"""Opening the library: find it, load it and initialise it, or explain why it can't be used.

In: roots. Out: the library file that was initialised, or `NotOpen` with a text that states what this node waits for.
Every discovery tries again, so a driver that is installed late is found without a restart. A library that was loaded
once stays loaded, and the loader never loads another one from the same path; `Opened.is_outdated` checks whether it is
still the right one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.hardware.nvidia import library, sysfs
from dra_driver.hardware.nvidia.nvml.binding import load
from dra_driver.hardware.nvidia.nvml.fault import NvmlFault
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.hardware.nvidia.worker import Worker
from dra_driver.hardware.port import Roots


@dataclass(frozen=True, slots=True)
class Opened:
    """A library that this process has loaded, and the kernel driver when it was initialised (None: it was not)."""

    file: library.LibraryFile | None
    driver_version: str | None

    def is_outdated(self, roots: Roots) -> bool:
        """Return whether the kernel has another driver now, or another library has replaced this one on disk."""
        version = sysfs.read_driver_version(roots)
        if version and self.driver_version and version != self.driver_version:
            return True
        found = library.library_file(self.file.path) if self.file else None
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
        raise _not_open(fault, version, Opened(library.library_file(path), None)) from None
    return Opened(library.library_file(path), version)


def _load_first(roots: Roots, driver: Worker) -> str:
    refusals = []
    for candidate in library.candidates(roots):
        driver.mark("dlopen")
        try:
            load(candidate)
        except OSError as error:
            if candidate != library.SONAME:
                refusals.append(str(error))
            continue
        return candidate if candidate != library.SONAME else library.mapped_file() or candidate
    if refusals:
        raise NotOpen("library-unusable", f"a usable {library.SONAME}: {'; '.join(refusals)}")
    where = f"below {roots.driver_mount} nor by the loader" if library.has_own_mount(roots) else "by the loader"
    neither = "found neither " if library.has_own_mount(roots) else "not found "
    raise NotOpen("library-missing", f"the NVIDIA driver to be installed: {library.SONAME} was {neither}{where}")


def _not_open(fault: NvmlFault, version: str | None, loaded: Opened) -> NotOpen:
    if fault.name == "DRIVER_NOT_LOADED":
        text = "the NVIDIA kernel driver to be loaded (NVML: DRIVER_NOT_LOADED)"
        return NotOpen("driver-not-loaded", text, loaded)
    if fault.name == "LIB_RM_VERSION_MISMATCH":
        kernel = f"the loaded kernel driver ({version})" if version else "the loaded kernel driver"
        text = f"{library.SONAME} and {kernel} to have the same version; reload the driver"
        return NotOpen("driver-mismatch", text, loaded)
    return NotOpen("library-failed", f"NVML to start; it reports {fault}", loaded)
