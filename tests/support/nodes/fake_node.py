"""A node's sysfs, procfs and /dev as folders: PCI functions, driver, NUMA, MIG capabilities, device nodes.

`FakeNode(folder).roots` goes to the code under test; the methods change the node under it. Device nodes are real
character devices where the test may make them (root), otherwise plain files.
"""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.port import Roots

NVIDIA_MAJOR = 195
UVM_MAJOR = 511
CAPS_MAJOR = 237
CONTROL_NODES = (
    ("nvidiactl", NVIDIA_MAJOR, 255),
    ("nvidia-modeset", NVIDIA_MAJOR, 254),
    ("nvidia-uvm", UVM_MAJOR, 0),
    ("nvidia-uvm-tools", UVM_MAJOR, 1),
)


@dataclass
class FakeNode:
    """One node below `folder`. With `null_nodes` every device node is c 1:3, which any container may open."""

    folder: Path
    null_nodes: bool = False

    def __post_init__(self) -> None:
        for path in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/module", "proc/sys/kernel/random", "dev"):
            (self.folder / path).mkdir(parents=True, exist_ok=True)
        (self.folder / "proc/sys/kernel/random/boot_id").write_text("1b4e28ba-2fa1-41d2-883f-0016d3cca427\n")
        (self.folder / "proc/devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n")

    @property
    def roots(self) -> Roots:
        """Return the roots, with the driver root on the host."""
        return Roots(sys=str(self.folder / "sys"), proc=str(self.folder / "proc"), dev=str(self.folder / "dev"))

    # -- PCI

    def add_gpu(
        self,
        pci: str,
        minor: int | None = None,
        *,
        numa: int = -1,
        root: str = "",
        driver: str | None = "nvidia",
        pci_class: str = "0x030200",
        vendor: str = "0x10de",
        physfn: str = "",
    ) -> None:
        """Put a GPU on the bus, below root complex `root` (default: bus 00 of its domain); with a minor also its node
        and what the kernel driver writes of it."""
        domain = pci.partition(":")[0]
        root = root or f"pci{domain}:00"
        home = self.folder / "sys/devices" / root / f"{root.removeprefix('pci')}:01.0" / pci
        home.mkdir(parents=True, exist_ok=True)
        for name, text in (("vendor", vendor), ("class", pci_class), ("numa_node", str(numa))):
            (home / name).write_text(text + "\n")
        _link(self.folder / "sys/bus/pci/devices" / pci, home)
        if physfn:
            _link(home / "physfn", self.folder / "sys/bus/pci/devices" / physfn)
        self.bind(pci, driver)
        if minor is not None:
            self.drive(pci, minor)

    def bind(self, pci: str, driver: str | None) -> None:
        """Bind a function to a kernel driver, or to none."""
        link = (self.folder / "sys/bus/pci/devices" / pci).resolve() / "driver"
        link.unlink(missing_ok=True)
        if driver:
            home = self.folder / "sys/bus/pci/drivers" / driver
            home.mkdir(parents=True, exist_ok=True)
            _link(link, home)

    def drive(self, pci: str, minor: int) -> None:
        """Let the kernel driver own the GPU: its entry below /proc/driver/nvidia and its node."""
        info = self.folder / "proc/driver/nvidia/gpus" / pci
        info.mkdir(parents=True, exist_ok=True)
        (info / "information").write_text(f"Model: \t\t NVIDIA\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n")
        self.add_node(f"nvidia{minor}", NVIDIA_MAJOR, minor)

    def remove_gpu(self, pci: str, minor: int | None = None) -> None:
        """Take a GPU off the bus."""
        link = self.folder / "sys/bus/pci/devices" / pci
        shutil.rmtree(link.resolve())
        link.unlink()
        shutil.rmtree(self.folder / "proc/driver/nvidia/gpus" / pci, ignore_errors=True)
        if minor is not None:
            (self.folder / "dev" / f"nvidia{minor}").unlink(missing_ok=True)

    # -- kernel driver

    def load_driver(self, version: str = "580.65.06", *, caps_major: int = CAPS_MAJOR) -> None:
        """Load the kernel driver: version files, majors, control nodes."""
        module = self.folder / "sys/module/nvidia"
        module.mkdir(parents=True, exist_ok=True)
        (module / "version").write_text(version + "\n")
        home = self.folder / "proc/driver/nvidia"
        home.mkdir(parents=True, exist_ok=True)
        (home / "version").write_text(
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder)\n"
            "GCC version:  gcc version 12.2.0\n"
        )
        (self.folder / "proc/devices").write_text(
            f"Character devices:\n  1 mem\n{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidiactl\n{UVM_MAJOR} nvidia-uvm\n"
            f"{caps_major} nvidia-caps\n\nBlock devices:\n  8 sd\n"
        )
        for name, major, minor in CONTROL_NODES:
            self.add_node(name, major, minor)

    def unload_driver(self) -> None:
        """Unload the kernel driver."""
        shutil.rmtree(self.folder / "sys/module/nvidia", ignore_errors=True)
        shutil.rmtree(self.folder / "proc/driver", ignore_errors=True)
        (self.folder / "proc/devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n  8 sd\n")

    def add_mig_capability(self, minor: int, gi: int, gi_cap: int, cis: dict[int, int]) -> None:
        """Publish the capability minors of a GPU instance and of its compute instances, and make their nodes."""
        home = self.folder / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}"
        entries = {home / "access": gi_cap, **{home / f"ci{ci}" / "access": cap for ci, cap in cis.items()}}
        for path, cap in entries.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
            self.add_node(f"nvidia-caps/nvidia-cap{cap}", CAPS_MAJOR, cap)
        minors = self.folder / "proc/driver/nvidia-caps/mig-minors"
        minors.parent.mkdir(parents=True, exist_ok=True)
        lines = minors.read_text().splitlines() if minors.exists() else ["config 1", "monitor 2"]
        lines.append(f"gpu{minor}/gi{gi}/access {gi_cap}")
        lines += [f"gpu{minor}/gi{gi}/ci{ci}/access {cap}" for ci, cap in cis.items()]
        minors.write_text("\n".join(lines) + "\n")

    def remove_mig_capability(self, minor: int, gi: int) -> None:
        """Remove the capabilities of a GPU instance."""
        shutil.rmtree(self.folder / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}")

    # -- nodes

    def add_node(self, name: str, major: int, minor: int, *, mode: int = 0o666) -> None:
        """Make a node below dev: a character device if allowed, else a plain file."""
        if self.null_nodes:
            major, minor = 1, 3
        make_node(self.folder / "dev" / name, major, minor, mode=mode)


def make_node(path: Path, major: int, minor: int, *, mode: int = 0o666) -> None:
    """Make a node of the given numbers: a character device if allowed, else a plain file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        path.chmod(mode)
    except PermissionError:
        path.write_bytes(b"")


def can_make_nodes(folder: Path) -> bool:
    """Return whether this test may make character devices in a folder."""
    probe = folder / "probe-node"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        return False
    probe.unlink()
    return True


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
