"""A simulated kernel's side of the PCI bus: functions, drivers and IOMMU groups in a folder, and what a write does.

In: functions to put on the bus, and writes to the files by which a function's driver is changed. Out: moved links, as
the kernel moves them before a write returns, or the error that it would report. Device nodes of VFIO are created and
removed with the binding. Only this process writes to the folder; after a reboot there is a new one.
Source: Linux, drivers/pci/pci-driver.c, drivers/base/bus.c (bind_store, unbind_store), drivers/vfio.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from dra_driver.hardware.passthrough.drivers import is_vfio
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.edits import OF_A_GPU

GPU_CLASS, AUDIO_CLASS, BRIDGE_CLASS = 0x030200, 0x040300, 0x060400
_NULL = Path("/dev/null")
_NO_OVERRIDE = "(null)"
_FUNCTIONS = 1 << 18  # the first minor of the nodes of VFIO that no group has
_CONFIG = bytes.fromhex("de10302306041000")
_CONFIG_OF_VIRTUAL = bytes.fromhex("ffffffff00001000")


class SimulatedKernel:
    """The bus below a folder, and the `KernelWriter` for it."""

    def __init__(self, folder: Path, node_major: int | None = None) -> None:
        self.folder, self._node_major = folder, node_major
        self._sys, self._dev = folder / "sys", folder / "dev"
        for path in ("bus/pci/devices", "bus/pci/drivers", "kernel/iommu_groups", "module"):
            (self._sys / path).mkdir(parents=True, exist_ok=True)
        (self._dev / "vfio/devices").mkdir(parents=True, exist_ok=True)
        self._make_node("vfio/vfio")

    def roots(self, real: Roots) -> Roots:
        """Return the real roots, with sysfs and devices replaced by those of this bus."""
        return Roots(str(self._sys), real.proc, str(self._dev), real.driver, real.driver_mount)

    # -- what is on the bus

    def add_driver(self, name: str) -> None:
        """Load a driver."""
        folder = self._sys / "bus/pci/drivers" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("bind", "unbind"):
            (folder / file).write_text("")

    def add_function(
        self, address: str, driver: str, group: int, *, pci_class: int = GPU_CLASS, pci_id: int = 0x233010DE
    ) -> None:
        """Put a function on the bus, bound to a driver."""
        home = self._sys / "devices/pci0000:00" / address
        home.mkdir(parents=True, exist_ok=True)
        texts = {
            "vendor": f"0x{pci_id & 0xFFFF:04x}",
            "device": f"0x{pci_id >> 16:04x}",
            "class": f"0x{pci_class:06x}",
            "driver_override": _NO_OVERRIDE,
            "resource": "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200",
            "numa_node": "-1",
            "reset": "",
        }
        for name, text in texts.items():
            (home / name).write_text(text + "\n")
        (home / "config").write_bytes(_CONFIG)
        members = self._sys / "kernel/iommu_groups" / str(group) / "devices"
        members.mkdir(parents=True, exist_ok=True)
        _link(self._device(address), home)
        _link(home / "iommu_group", members.parent)
        _link(members / address, home)
        if driver:
            self.add_driver(driver)
            self._link_driver(address, driver)

    def add_virtual_function(self, address: str, physical: str, driver: str, group: int, *, pci_id: int) -> None:
        """Put a virtual function on the bus. Its configuration space has neither vendor nor device."""
        self.add_function(address, driver, group, pci_id=pci_id)
        home, of = self._device(address), self._device(physical)
        (home / "config").write_bytes(_CONFIG_OF_VIRTUAL)
        _link(home / "physfn", of)
        (of / "sriov_numvfs").write_text(f"{len([*of.glob('virtfn*')]) + 1}\n")
        _link(of / f"virtfn{len([*of.glob('virtfn*')])}", home)

    def add_iommufd(self) -> None:
        """Add iommufd to the kernel, so that functions that are bound from now on have a node of their own, too."""
        self._make_node("iommu")

    def driver_of(self, address: str) -> str:
        """Return the driver that has a function, "" for none."""
        link = self._device(address) / "driver"
        return link.readlink().name if link.is_symlink() else ""

    # -- writes

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        """Do what the kernel would do for a write. Raises: OSError."""
        del deadline_s
        if path.name == "driver_override":
            path.write_text((text.strip() or _NO_OVERRIDE) + "\n")
        elif path.name == "bind":
            self._bind(text, path.parent.name)
        elif path.name == "unbind":
            self._unbind(text, path.parent.name)
        elif path.name != "reset":
            raise OSError(errno.EINVAL, f"nothing is written to {path}")

    def _bind(self, address: str, driver: str) -> None:
        if not self._device(address).exists() or self.driver_of(address):
            raise OSError(errno.ENODEV if not self.driver_of(address) else errno.EBUSY, address)
        override = (self._device(address) / "driver_override").read_text().strip()
        if override not in {_NO_OVERRIDE, driver} or (is_vfio(driver) and override != driver):
            raise OSError(errno.ENODEV, address)  # a VFIO driver takes only functions whose driver_override names it
        self._link_driver(address, driver)

    def _unbind(self, address: str, driver: str) -> None:
        if self.driver_of(address) != driver:
            raise OSError(errno.ENODEV, address)
        home = self._device(address)
        (home / "driver").unlink()
        (self._sys / "bus/pci/drivers" / driver / address).unlink(missing_ok=True)
        from shutil import rmtree  # noqa: PLC0415 - only where a GPU is passed through

        rmtree(home / "vfio-dev", ignore_errors=True)
        group = (home / "iommu_group").resolve().name
        (self._dev / "vfio/devices" / f"vfio{group}").unlink(missing_ok=True)
        if not any(is_vfio(self.driver_of(one.name)) for one in (home / "iommu_group/devices").iterdir()):
            (self._dev / "vfio" / group).unlink(missing_ok=True)

    def _link_driver(self, address: str, driver: str) -> None:
        home = self._device(address)
        folder = self._sys / "bus/pci/drivers" / driver
        _link(home / "driver", folder)
        _link(folder / address, home)
        if not is_vfio(driver):
            return
        group = (home / "iommu_group").resolve().name
        self._make_node(f"vfio/{group}")
        if (self._dev / "iommu").exists():
            (home / f"vfio-dev/vfio{group}").mkdir(parents=True, exist_ok=True)
            self._make_node(f"vfio/devices/vfio{group}")

    def _make_node(self, name: str) -> None:
        """Create a node of VFIO: a link to /dev/null, or a device with a number of its own."""
        path = self._dev / name
        if os.path.lexists(path):
            return
        if self._node_major is None:
            path.symlink_to(_NULL)
        else:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(self._node_major, node_minor(name)))

    def _device(self, address: str) -> Path:
        return self._sys / "bus/pci/devices" / address


def node_minor(name: str) -> int:
    """Return the minor of a VFIO node by its name below /dev: of a group, the last one of a GPU's."""
    kind, _, number = name.rpartition("/")
    group = int(number.removeprefix("vfio")) if number.removeprefix("vfio").isdecimal() else 0
    return group * OF_A_GPU - 1 if group and kind == "vfio" else _FUNCTIONS + group


def _link(path: Path, to: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(to, path.parent))
