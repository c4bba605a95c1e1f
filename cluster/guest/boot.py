"""Booting a guest: Debian's kernel under QEMU without virtualization, this machine's file system read-only inside.

In: a folder with a kernel and its modules, and a program. Out: what the program printed. The guest has an emulated
IOMMU (VT-d) and spare PCI functions; nothing of this machine but its files is visible inside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

MODULES = ("9p", "9pnet_virtio", "virtio_pci", "vfio_iommu_type1", "vfio_pci", "xhci_pci", "nvme")
_FUNCTIONS = "sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2"  # the disk has virtual functions
DEVICES = (
    "intel-iommu,intremap=on,caching-mode=on",
    "virtio-9p-pci,fsdev=host,mount_tag=host",
    "pcie-root-port,id=first,bus=pcie.0,chassis=1,slot=1",
    "virtio-rng-pci,bus=first,addr=0.0,multifunction=on",  # used as the GPU: it can be reset by itself
    "qemu-xhci,bus=first,addr=0.1",  # in its group: a USB function, as a Radeon has one
    "pcie-root-port,id=second,bus=pcie.0,chassis=2,slot=2",
    "nvme-subsys,id=disks",
    "nvme,serial=spare,bus=second,subsys=disks,max_ioqpairs=6,msix_qsize=7," + _FUNCTIONS,
)
_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for one in $($b cat /modules/order); do $b insmod /modules/$one || echo "module $one is not loaded"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /host || echo "no file system"
$b mount -o bind /proc /host/proc; $b mount -o bind /sys /host/sys; $b mount -o bind /dev /host/dev
$b mount -t tmpfs tmp /host/tmp
cd /; $b chroot /host /bin/sh -c 'cd "{folder}" && PYTHONDONTWRITEBYTECODE=1 HOME=/tmp "{python}" -m {program}'
$b sync; $b poweroff -f
"""


class Obstacle(Exception):
    """Why no guest can be booted here."""


def find_kernel(given: str) -> tuple[Path, Path]:
    """Return a kernel's image and the folder of its modules, below a folder as Debian's package is laid out."""
    root = Path(given or "/")
    for image in sorted(root.glob("boot/vmlinuz-*"), reverse=True):
        modules = root / "lib/modules" / image.name.removeprefix("vmlinuz-")
        if (modules / "kernel/drivers/vfio").is_dir():
            return image, modules
    raise Obstacle(f"no kernel with its modules below {root} (Debian's linux-image-amd64, or --kernel FOLDER)")


def run_inside(program: str, kernel: str, *, python: str, folder: Path, seconds: float) -> str:
    """Boot, run a module of Python with `folder` as working directory, and return all that was printed."""
    image, modules = find_kernel(kernel)
    for name in ("qemu-system-x86_64", "busybox"):
        if shutil.which(name) is None:
            raise Obstacle(f"{name} is not installed (Debian's qemu-system-x86, busybox-static)")
    with tempfile.TemporaryDirectory(prefix="guest-") as place:
        disk = _initial_disk(Path(place), modules, _INIT.format(folder=folder, python=python, program=program))
        command = ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]
        command += ["-m", "1536", "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
        command += ["-kernel", str(image), "-initrd", str(disk)]
        command += ["-append", "console=ttyS0 quiet panic=-1 intel_iommu=on"]
        command += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
        for device in DEVICES:
            command += ["-device", device]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    return done.stdout + done.stderr


def _initial_disk(place: Path, modules: Path, init: str) -> Path:
    root = place / "root"
    for name in ("bin", "proc", "sys", "dev", "host", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy2(shutil.which("busybox") or "", root / "bin/busybox")
    (root / "init").write_text(init)
    (root / "init").chmod(0o755)
    files = {path.name.partition(".")[0].replace("-", "_"): path for path in modules.rglob("*.ko")}
    order: list[str] = []
    for name in MODULES:
        _add(name, files, order)
    for name in order:
        shutil.copy2(files[name], root / "modules" / name)
    (root / "modules/order").write_text("\n".join(order) + "\n")
    names = "\n".join(sorted(os.path.relpath(path, root) for path in root.rglob("*")))
    with (place / "initrd").open("wb") as out:
        command = ["busybox", "cpio", "-o", "-H", "newc"]
        subprocess.run(command, input=names.encode(), stdout=out, stderr=subprocess.DEVNULL, cwd=root, check=True)
    return place / "initrd"


def _add(name: str, files: dict[str, Path], order: list[str]) -> None:
    """Add a module behind those that it needs; one that is built in has no file."""
    if name in order or name not in files:
        return
    needed = re.search(rb"\0depends=([^\0]*)\0", files[name].read_bytes())
    for one in (needed[1].decode() if needed else "").split(","):
        _add(one.replace("-", "_"), files, order)
    order.append(name)
