"""A node whose kernel is simulated: a GPU with its companion functions, writes that can fail, and the plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dra_driver.base.names import gpu_name, vfio_name
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.driver_binding import BusAccess
from dra_driver.hardware.facts import PassthroughFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.kernel import AUDIO_CLASS, SimulatedKernel
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.prepare.steps.passthrough import PassthroughServices
from tests.support.plugin.parts import Rig

GPU, AUDIO, TYPE_C, OTHER = "0000:41:00.0", "0000:41:00.1", "0000:41:00.3", "0000:42:00.0"
GROUP = 14
WHOLE, PASSED = gpu_name(GPU), vfio_name(GPU)
FACTS = NvidiaGpu(uuid="GPU-1", pci_address=GPU, minor=0, nodes=("nvidia0",), memory_bytes=80 << 30)


def new_kernel(folder: Path) -> SimulatedKernel:
    """A bus with a GPU and its audio function in one group, and another GPU in a group of its own."""
    kernel = SimulatedKernel(folder)
    kernel.add_driver("vfio-pci")
    kernel.add_function(GPU, "nvidia", GROUP)
    kernel.add_function(AUDIO, "snd_hda_intel", GROUP, pci_class=AUDIO_CLASS, pci_id=0x10F010DE)
    kernel.add_function(OTHER, "nvidia", GROUP + 1)
    return kernel


def new_radeon(folder: Path) -> SimulatedKernel:
    """A bus with a Radeon, its audio and its USB-C function in one group, and another GPU in a group of its own."""
    kernel = SimulatedKernel(folder)
    kernel.add_driver("vfio-pci")
    kernel.add_function(GPU, "amdgpu", GROUP, pci_class=0x030000, pci_id=0x73BF1002)
    kernel.add_function(AUDIO, "snd_hda_intel", GROUP, pci_class=AUDIO_CLASS, pci_id=0xAB281002)
    kernel.add_function(TYPE_C, "", GROUP, pci_class=0x0C8000, pci_id=0x73A41002)
    kernel.add_function(OTHER, "amdgpu", GROUP + 1, pci_id=0x73BF1002)
    return kernel


def new_virtual_function(folder: Path) -> SimulatedKernel:
    """A bus with a virtual function of Intel's, for which there is a variant driver, and its physical function."""
    kernel = SimulatedKernel(folder)
    kernel.add_driver("vfio-pci")
    kernel.add_driver("xe-vfio-pci")
    kernel.add_function(OTHER, "xe", GROUP + 1, pci_id=0x56C08086)
    kernel.add_virtual_function(GPU, OTHER, "xe", GROUP, pci_id=0x56C08086)
    return kernel


MACHINES = {"nvidia": new_kernel, "radeon": new_radeon, "function": new_virtual_function}


class ScriptedKernel:
    """The kernel of a folder; `before` is called with each write and may raise what the kernel would."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        self.kernel = kernel
        self.before: Callable[[str, str], None] = lambda _file, _text: None
        self.writes: list[tuple[str, str]] = []

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        self.writes.append((path.name, text))
        self.before(path.name, text)
        self.kernel.write(path, text, deadline_s)


class PassthroughRig(Rig):
    """A node with one GPU that virtual machines can get, on a simulated kernel."""

    def __init__(self, root: Path, machine: str = "nvidia") -> None:
        self.kernel = ScriptedKernel(
            SimulatedKernel(root / "bus") if (root / "bus").exists() else MACHINES[machine](root / "bus")
        )
        (root / "proc").mkdir(exist_ok=True)
        real = Roots(proc=str(root / "proc"))
        self.roots = self.kernel.kernel.roots(real)
        self.passthrough = PassthroughServices(BusAccess(self.roots, self.kernel))
        super().__init__(root)
        facts = replace(FACTS, passthrough=PassthroughFacts())
        whole = Device(WHOLE, DeviceType.GPU, {}, {}, facts, counter_set="x", counters={"gpu": 1})
        passed = Device(PASSED, DeviceType.VFIO, {}, {}, facts, counter_set="x", counters={"gpu": 1})
        self.inventory = Inventory(Offering((*self.inventory.offering.devices, whole, passed)))

    def drivers(self) -> dict[str, str]:
        homes = Path(self.roots.sys, "bus/pci/devices").iterdir()
        return {one.name: self.kernel.kernel.driver_of(one.name) for one in sorted(homes)}

    def overrides(self) -> set[str]:
        homes = Path(self.roots.sys, "bus/pci/devices").iterdir()
        return {(home / "driver_override").read_text().strip() for home in homes}

    def open_node(self, pid: int, node: str, command: str = "qemu", pod: str = "") -> None:
        """Make a process of the host have a device node open."""
        path = Path(self.roots.dev, node)
        if path.is_symlink() or not path.exists():  # a file of its own, because /dev/null is open in every process
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        home = self.root / "proc" / str(pid)
        (home / "fd").mkdir(parents=True, exist_ok=True)
        (home / "comm").write_text(command + "\n")
        (home / "cgroup").write_text(
            f"0::/kubepods.slice/kubepods-pod{pod.replace('-', '_')}.slice/x\n" if pod else "0::/\n"
        )
        (home / "fd" / "3").symlink_to(path)


BEFORE = {GPU: "nvidia", AUDIO: "snd_hda_intel", OTHER: "nvidia"}
DURING = {GPU: "vfio-pci", AUDIO: "vfio-pci", OTHER: "nvidia"}
