"""Kernel driver: which module drives the GPUs of this node, in which version, and whether it could be built.

In: roots. Out: `KernelDriver`. Only sysfs, procfs and the names of files are read; no module is loaded, and no device
is opened.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware import pci
from dra_driver.hardware.drm import on_bus
from dra_driver.hardware.nvidia import library, sysfs
from dra_driver.hardware.port import Roots
from dra_driver.model.vendors import DEFAULT_VENDOR, RegisteredVendor, registered_or_default

_FILE_VERSION = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class KernelDriver:
    """The kernel driver and the library of the GPUs. A version is None if there is no such module or library.

    `bound` maps the PCI address of each GPU to its kernel driver, or to None if it has none. `sources` are driver
    sources that are ready to be built (DKMS); `has_headers`: whether the running kernel's build folder exists.
    """

    bound: dict[str, str | None]
    module_version: str | None
    library_version: str | None
    library_file: str | None
    sources: tuple[str, ...]
    kernel: str
    has_headers: bool


def read_kernel_driver(roots: Roots, host: Path, vendor: str = DEFAULT_VENDOR.name) -> KernelDriver:
    """Read the state of this node. `host` is the root of the host's file system, `vendor` the vendor of the GPUs."""
    file = next(iter([*library.below_mount(roots), *library.in_library_path()]), None)
    release = pci.read_text(Path(roots.proc, "sys/kernel/osrelease")) or os.uname().release
    return KernelDriver(
        bound=_bound(roots, registered_or_default(vendor)),
        module_version=sysfs.read_driver_version(roots),
        library_version=_version_of(file),
        library_file=file,
        sources=tuple(sorted(path.name for path in (host / "usr/src").glob("nvidia-*") if path.is_dir())),
        kernel=release,
        has_headers=os.access(host / "lib/modules" / release / "build", os.F_OK),
    )


def _bound(roots: Roots, vendor: RegisteredVendor) -> dict[str, str | None]:
    """Return the driver of each GPU; virtual functions without a driver are left out, because that is intended."""
    found = on_bus(roots, vendor)
    return {
        address: driver
        for address, driver in found
        if driver or pci.read_physical(pci.function_folder(roots, address)) is None
    }


def _version_of(file: str | None) -> str | None:
    match = _FILE_VERSION.search(os.path.realpath(file)) if file else None
    return match[1] if match else None
