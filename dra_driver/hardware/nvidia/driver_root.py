"""The NVIDIA driver root as a tree of its own, and the driver that is installed in it.

Paths inside the tree come in, paths on the host go out. The root is the host's / or a driver container's file system
(/run/nvidia/driver), which this process sees below a mount. Symlinks are followed as if that mount were /, so none
leads outside. The tree remembers the paths that it looked at, which makes it cheap to check whether another look would
find the same. Of the driver, the folder of its libraries and its version are found, the latter in the name of a library
or by way of the loader's cache; a broken cache holds none. No library is opened.
Source: the driver's README, "Installed Components"; NVIDIA Container Toolkit for which of them containers get; glibc,
sysdeps/generic/dl-cache.h: header "glibc-ld.so.cache1.1", entries of 24 bytes, offsets from the header.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dra_driver.base.machine import Stamp, stamp_of, stamp_of_status

_MAX_LINKS = 40  # the same as the kernel's own limit (ELOOP)
_SETTLED_NS = 50_000_000  # file systems take time stamps from the kernel's coarse clock (4 to 10 ms)


class DriverRoot:
    """One look at a driver root: this process sees it at `mount`, and its path on the host is `host`.

    All paths passed in and returned are absolute and inside the root ("/usr/lib64/libcuda.so.1"), except the results of
    `here` and `on_host`. Two threads must not use one object at the same time.
    """

    def __init__(self, mount: str, host: str) -> None:
        self._mount = mount.rstrip("/")
        self._host = host.rstrip("/")
        self._looked: dict[str, Stamp | None] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._started_ns = time.time_ns()

    def here(self, path: str) -> str:
        """Return the path by which this process opens a resolved path."""
        return self._mount + path

    def on_host(self, path: str) -> str:
        """Return the path by which the container runtime opens a resolved path."""
        return self._host + path

    def resolve(self, path: str) -> str | None:
        """Follow every symlink of a path inside the root; return None when it leads nowhere."""
        done: list[str] = []
        todo = path.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            inner = "/".join(["", *done, part])
            try:
                mode = os.lstat(self._mount + inner).st_mode
            except OSError:
                self._note(inner)
                return None
            if not stat.S_ISLNK(mode):
                done.append(part)
                continue
            self._note(inner)
            links += 1
            if links > _MAX_LINKS:
                return None
            target = os.readlink(self._mount + inner)  # noqa: PTH115
            if target.startswith("/"):
                done.clear()
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder; none when it is missing or is not a folder."""
        resolved = self.resolve(folder)
        if resolved is None:
            return frozenset()
        if resolved not in self._names:
            self._note(resolved)
            try:
                self._names[resolved] = frozenset(os.listdir(self._mount + resolved))  # noqa: PTH208
            except OSError:
                self._names[resolved] = frozenset()
        return self._names[resolved]

    def find(self, path: str) -> str | None:
        """Resolve a path whose folder may change often (/tmp, /run), remembering only the path itself."""
        resolved = self.resolve(path)
        if resolved is not None:
            self._note(resolved)
        return resolved

    def find_program(self, name: str, folders: Iterable[str]) -> str | None:
        """Return the first executable file of that name in the folders, or None."""
        for folder in folders:
            if name in self.names(folder):
                resolved = self.resolve(f"{folder}/{name}")
                if resolved and os.access(self.here(resolved), os.X_OK) and Path(self.here(resolved)).is_file():
                    return f"{folder}/{name}"
        return None

    def is_unchanged(self) -> bool:
        """Return whether everything that was looked at is as it was."""
        mount, lstat = self._mount, os.lstat
        for path, stamp in self._looked.items():
            try:
                now = stamp_of_status(lstat(mount + path or "/"))
            except OSError:
                now = None
            if now != stamp:
                return False
        return True

    def is_settled(self) -> bool:
        """Return whether `is_unchanged` can be trusted.

        It can't if a folder changed during the look, since another change within the same clock tick would not show.
        """
        recent = range(self._started_ns - _SETTLED_NS, time.time_ns() + 1)
        return not any(stamp and stamp.mtime_ns in recent for stamp in self._looked.values())

    def _note(self, path: str) -> None:
        folder = path.rpartition("/")[0] or "/"
        if path not in self._looked and folder not in self._names:
            self._looked[path] = _stamp(self._mount + path)


def _stamp(path: str) -> Stamp | None:
    return stamp_of(path or "/", follows_links=False)


TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
LIBRARY_FOLDERS = (
    "/usr/lib64",
    "/usr/lib64/nvidia/current",
    *(f"/usr/lib/{triplet}" for triplet in TRIPLETS),
    *(f"/usr/lib/{triplet}/nvidia/current" for triplet in TRIPLETS),
    "/lib64",
    *(f"/lib/{triplet}" for triplet in TRIPLETS),
    *(f"/lib/{triplet}/nvidia/current" for triplet in TRIPLETS),
    # Talos before 1.13, then NixOS
    *("/usr/local/glibc/lib64", "/usr/local/glibc/usr/lib", "/usr/local/glibc/lib", "/usr/local/lib"),
    "/run/opengl-driver/lib",
)
# Libraries that come with the driver but have version numbers of their own.
OWN_VERSION = re.compile(r"libnvidia-(?:egl-(?:gbm|wayland2?|xcb|xlib)\.so\.\d+\.\d+.*|nvvm70\.so\.\d.*)")
# The number in a library's SONAME where that is not 1; "" where the SONAME has the driver's version.
# Source: the driver's README, "Installed Components".
SONAME_NUMBERS = {
    "libnvidia-nvvm": "4",
    "libGLX_nvidia": "0",
    "libEGL_nvidia": "0",
    "libGLESv2_nvidia": "2",
    **dict.fromkeys(
        (
            *("libnvidia-gpucomp", "libnvidia-glcore", "libnvidia-eglcore", "libnvidia-glsi", "libnvidia-glvkspirv"),
            *("libnvidia-tls", "libnvidia-rtcore", "libnvidia-vulkan-producer", "libnvidia-nvvm70"),
        ),
        "",
    ),
}
OPENED_WITHOUT_NUMBER = ("libcuda", "libnvidia-ml")
XORG_FOLDERS = tuple(
    f"{base}/modules/{updates}{kind}"
    for base in ("/usr/lib64/xorg", "/usr/lib/xorg", *(f"/usr/lib/{triplet}/xorg" for triplet in TRIPLETS))
    for updates in ("", "updates/")
    for kind in ("drivers", "extensions")
)
CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGS = (  # these go to /usr/share in the container, wherever the host has them
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
ETC_CONFIGS = (  # these go to /etc; some installers put Vulkan's into the driver root itself
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
FIRMWARE = re.compile(r"gsp.*\.bin")
BINARY_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/bin",
    "/run/opengl-driver/bin",
)
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
# The host's own MPS daemon is not among them: a claim's file would put its folder in the place of the one that another
# claim of the same container has from its daemon.
STORAGE_FILES = ("/run/udev", "/etc/cufile.json")
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
LIBCUDA = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)")
# gives the version where the driver was installed without CUDA
LIBNVML = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)")


_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sII20x")  # magic, number of entries, bytes of strings; then flags and reserved words
_ENTRY = struct.Struct("=iIIIQ")  # flags, offset of the name, offset of the path, OS version, hardware capabilities
_TYPE_MASK, _TYPE_LIBC6 = 0x00FF, 0x0003
_64_BIT = (0x0300, 0x0A00)  # FLAG_X8664_LIB64, FLAG_AARCH64_LIB64


def library_paths(cache: bytes, name: str) -> tuple[str, ...]:
    """Return the paths of the 64-bit libraries that the loader would use for `name`, best first."""
    start = cache.find(_MAGIC)  # a cache in the older format may precede it
    if start < 0 or len(cache) < start + _HEADER.size:
        return ()
    _, count, _ = _HEADER.unpack_from(cache, start)
    first = start + _HEADER.size
    count = min(count, (len(cache) - first) // _ENTRY.size)
    paths = []
    for index in range(count):
        flags, key, value, _, _ = _ENTRY.unpack_from(cache, first + index * _ENTRY.size)
        if flags & _TYPE_MASK != _TYPE_LIBC6 or flags & ~_TYPE_MASK not in _64_BIT:
            continue
        if _text(cache, start + key) == name:
            paths.append(_text(cache, start + value))
    return tuple(path for path in paths if path.startswith("/"))


def _text(cache: bytes, offset: int) -> str:
    end = cache.find(b"\0", offset)
    return cache[offset:end].decode(errors="replace") if 0 <= offset < len(cache) and end >= 0 else ""


def find_driver(root: DriverRoot, loaded: str | None) -> tuple[str, str]:
    """Return the folder of libcuda and the version in its name, or two empty texts where there is none.

    The loaded version is preferred, compared by number (580.65.6 is 580.65.06); else the first folder's newest version.
    """
    for pattern, soname in ((LIBCUDA, "libcuda.so.1"), (LIBNVML, "libnvidia-ml.so.1")):
        found = [(folder, v) for folder in LIBRARY_FOLDERS for v in _versions(root, folder, pattern)]
        matching = [pair for pair in found if loaded and is_same_version(pair[1], loaded)]
        if not matching:
            cached = [(folder, v) for folder in _cached_folders(root, soname) for v in _versions(root, folder, pattern)]
            matching = [pair for pair in cached if loaded and is_same_version(pair[1], loaded)]
            found += cached
        if found:
            return (matching or found)[0]
    return "", ""


def is_same_version(one: str, other: str) -> bool:
    """Return whether two driver versions are the same by number; leading zeros don't count."""
    return _numbers(one) == _numbers(other)


def _versions(root: DriverRoot, folder: str, pattern: re.Pattern[str]) -> list[str]:
    matches = (pattern.fullmatch(name) for name in root.names(folder))
    return sorted((m[1] for m in matches if m), key=_numbers, reverse=True)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _cached_folders(root: DriverRoot, soname: str) -> Iterator[str]:
    cache = root.find("/etc/ld.so.cache")
    if cache is None:
        return
    try:
        content = Path(root.here(cache)).read_bytes()
    except OSError:
        return
    for path in library_paths(content, soname):
        yield path.rpartition("/")[0]
        if resolved := root.resolve(path):
            yield resolved.rpartition("/")[0]
