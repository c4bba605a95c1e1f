"""A node with Gaudi accelerators: the files of sysfs and the device nodes, as the kernel documents them (composed)."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hardware.port import Roots
from tests.support.nodes.fake_node import make_node


@dataclass
class GaudiModule:
    """One accelerator. `verbs` is the number of its InfiniBand device, None where the network driver is not loaded."""

    address: str
    number: int = 0
    module_id: str | None = "0"
    device_id: int = 0x1020
    verbs: int | None = 0
    status: str | None = "operational"
    is_virtual: bool = False  # the folder of an older driver, among virtual devices
    files: dict[str, str] = field(default_factory=dict)


class GaudiTree:
    """The trees of one node below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def roots(self) -> Roots:
        """Return the roots of this node; the host's files lie below `host`."""
        names = {name: str(self.folder / name) for name in ("sys", "proc", "dev")}
        return Roots(**names, driver="/", driver_mount=str(self.folder / "host"))

    def function(self, address: str) -> Path:
        return self.folder / "sys/devices/pci0000:01" / address

    def write(self, *modules: GaudiModule, version: str = "1.22.1") -> GaudiTree:
        """Lay the node out with these accelerators, instead of what was there."""
        for below in ("sys", "dev"):
            shutil.rmtree(self.folder / below, ignore_errors=True)
        for below in ("sys/bus/pci/devices", "sys/bus/pci/drivers/habanalabs", "dev/accel", "dev/infiniband"):
            (self.folder / below).mkdir(parents=True)
        self._put(self.folder / "sys/module/habanalabs/version", version)
        for module in modules:
            self._write(module)
        return self

    def add_hook(self) -> None:
        """Put the hook's program and the network file on the host."""
        for name in ("usr/bin/habana-container-hook", "etc/habanalabs/gaudinet.json"):
            self._put(self.folder / "host" / name, "")
            (self.folder / "host" / name).chmod(0o755)

    def _write(self, module: GaudiModule) -> None:
        folder = self.function(module.address)
        place = self.folder / f"sys/devices/virtual/accel/accel{module.number}/device" if module.is_virtual else folder
        values = {"vendor": "0x1da3", "device": f"0x{module.device_id:04x}", "class": "0x120000", "numa_node": "1"}
        own = {"pci_addr": module.address, "module_id": module.module_id, "status": module.status}
        for name, text in {**values, **module.files}.items():
            self._put(folder / name, text)
        for name, text in own.items():
            if text is not None:
                self._put(place / name, text)
        if not module.is_virtual:
            (folder / f"accel/accel{module.number}").mkdir(parents=True)
        for name, minor in ((f"accel{module.number}", 0), (f"accel_controlD{module.number}", 1)):
            make_node(self.folder / "dev/accel" / name, 261, 2 * module.number + minor)
        if module.verbs is not None:
            (folder / f"infiniband_verbs/uverbs{module.verbs}").mkdir(parents=True)
            make_node(self.folder / f"dev/infiniband/uverbs{module.verbs}", 231, 192 + module.verbs)
        driver = self.folder / "sys/bus/pci/drivers/habanalabs"
        for link, target in (
            (self.folder / "sys/bus/pci/devices" / module.address, folder),
            (driver / module.address, folder),
            (folder / "driver", driver),
        ):
            link.symlink_to(os.path.relpath(target, link.parent))

    @staticmethod
    def _put(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
