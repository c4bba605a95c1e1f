"""Synthetic NVIDIA driver roots, and the parts of /dev, /proc and /sys that go with them.

Libraries are small text files: only their names and links matter to us. The links are those that the installers and
ldconfig make. Device nodes are real ones (mknod needs root: `can_make_nodes`).
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.port import Roots

VERSION = "580.65.06"
LIBRARIES = {  # name before .so.<version>: the links that ldconfig and the installer make
    "libcuda": ("libcuda.so.1", "libcuda.so"),
    "libcudadebugger": ("libcudadebugger.so.1",),
    "libnvidia-ml": ("libnvidia-ml.so.1", "libnvidia-ml.so"),
    "libnvidia-ptxjitcompiler": ("libnvidia-ptxjitcompiler.so.1",),
    "libnvidia-nvvm": ("libnvidia-nvvm.so.4",),
    "libnvidia-gpucomp": (),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so.1",),
    "libnvidia-allocator": ("libnvidia-allocator.so.1",),
    "libGLX_nvidia": ("libGLX_nvidia.so.0",),
    "libnvidia-vulkan-producer": (),
}
BINARIES = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-imex")
FOLDERS = {
    "debian": "/usr/lib/x86_64-linux-gnu",
    "debian-current": "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "rhel": "/usr/lib64",
    "arm": "/usr/lib/aarch64-linux-gnu",
    "talos": "/usr/local/glibc/usr/lib",
    "nixos": "/run/opengl-driver/lib",
    "odd": "/opt/vendor/lib",  # known to the loader's cache alone
}
CONFIGS = (
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/nvidia/nvoptix.bin",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
)


def can_make_nodes(folder: Path) -> bool:
    """Return whether this process may make device nodes (root with CAP_MKNOD, a file system that takes them)."""
    probe = folder / ".probe"
    try:
        os.mknod(probe, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        with probe.open("rb"):
            pass  # a file system mounted nodev refuses here
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


@dataclass
class FakeDriverRoot:
    """A driver root below `mount`, which the host calls `host`."""

    mount: Path
    layout: str = "debian"
    host: str = "/"
    version: str = VERSION
    folder: str = field(init=False)

    def __post_init__(self) -> None:
        self.folder = FOLDERS[self.layout]
        self.add_libraries(self.version)
        for name in BINARIES:
            self.add(f"/usr/bin/{name}", mode=0o755)
        for path in CONFIGS:
            self.add(path)
        self.add(f"/lib/firmware/nvidia/{self.version}/gsp_ga10x.bin")
        self.add(f"/lib/firmware/nvidia/{self.version}/gsp_tu10x.bin")

    def add(self, path: str, content: bytes = b"", mode: int = 0o644) -> Path:
        """Make a file, with its folders."""
        file = Path(f"{self.mount}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content or f"{path}\n".encode())
        file.chmod(mode)
        return file

    def link(self, path: str, target: str) -> None:
        """Make a symlink, as written, with its folders; an existing one is replaced."""
        file = Path(f"{self.mount}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    def add_libraries(self, version: str) -> None:
        """Install a driver's libraries, with their links."""
        for stem, links in LIBRARIES.items():
            self.add(f"{self.folder}/{stem}.so.{version}")
            for name in links:
                self.link(f"{self.folder}/{name}", f"{stem}.so.{version}")
        self.add(f"{self.folder}/vdpau/libvdpau_nvidia.so.{version}")
        self.add(f"{self.folder}/libnvidia-egl-gbm.so.1.1.2")

    def remove_libraries(self, version: str) -> None:
        """Remove a driver's libraries."""
        for stem in LIBRARIES:
            Path(f"{self.mount}{self.folder}/{stem}.so.{version}").unlink()

    def add_hook(self, path: str = "/usr/bin/nvidia-cdi-hook", content: bytes = b"#!/bin/sh\nexit 0\n") -> None:
        """Install a hook program."""
        self.add(path, content, mode=0o755)

    def add_ldcache(self, entries: dict[str, str]) -> None:
        """Write /etc/ld.so.cache with library names and paths."""
        self.add("/etc/ld.so.cache", ldcache(entries))

    def roots(self, dev: Path | str = "/dev", proc: Path | str = "/proc", sys: Path | str = "/sys") -> Roots:
        """Return the roots as the agent would have them."""
        return Roots(
            sys=str(sys),
            proc=str(proc),
            dev=str(dev),
            driver=self.host,
            driver_mount=str(self.mount),
            host=str(self.mount.parent / "host"),
        )


def ldcache(entries: dict[str, str], *, old_header: bool = False) -> bytes:
    """Encode a loader cache as glibc >= 2.2 writes it for x86_64; `old_header` puts the older cache before it."""
    strings, offsets = b"", []
    start = 48 + 24 * len(entries)
    for name, path in entries.items():
        key = start + len(strings)
        strings += name.encode() + b"\0"
        offsets.append((key, start + len(strings)))
        strings += path.encode() + b"\0"
    header = struct.pack("=20sII20x", b"glibc-ld.so.cache1.1", len(entries), len(strings))
    body = b"".join(struct.pack("=iIIIQ", 0x0303, key, value, 0, 0) for key, value in offsets)
    before = b"ld.so-1.7.0\0" + struct.pack("=I", 0) if old_header else b""
    return before + header + body + strings


def fake_dev(folder: Path, *, gpus: int = 2, mode: int = 0o666, gid: int = 0, uvm_major: int = 510) -> Path:
    """Make a /dev with the nodes of `gpus` GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {f"nvidia{n}": (195, n) for n in range(gpus)} | {
        "nvidiactl": (195, 255),
        "nvidia-modeset": (195, 254),
        "nvidia-uvm": (uvm_major, 0),
        "nvidia-uvm-tools": (uvm_major, 1),
    }
    for name, (major, minor) in numbers.items():
        make_node(folder / name, major, minor, mode=mode, gid=gid)
    return folder


def make_node(path: Path, major: int, minor: int, *, mode: int = 0o666, gid: int = 0) -> None:
    """Make a character device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mknod(path, mode | stat.S_IFCHR, os.makedev(major, minor))
    path.chmod(mode)
    os.chown(path, 0, gid)


def fake_proc(folder: Path, *, majors: dict[str, int] | None = None, version: str = VERSION) -> Path:
    """Make the parts of /proc that the kernel module fills."""
    majors = {"mem": 1, "nvidia": 195, "nvidia-uvm": 510, "nvidia-caps": 234} if majors is None else majors
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{major:3d} {name}\n" for name, major in majors.items())
    (folder / "devices").write_text(f"Character devices:\n{lines}\nBlock devices:\n  7 loop\n")
    driver = folder / "driver" / "nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    (driver / "version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root@host)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    return folder


def add_capability(proc: Path, gpu: int, access: str, minor: int, mode: int = 292) -> None:
    """Make the file by which the kernel module names a MIG capability, e.g. of "gi3/ci0/access"."""
    file = proc / "driver" / "nvidia" / "capabilities" / f"gpu{gpu}" / "mig" / access
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
