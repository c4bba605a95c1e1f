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
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dra_driver.base.machine import Stamp, boot_time
from dra_driver.hardware.driver_binding import BusAccess, processes_with
from dra_driver.hardware.evidence import BusState, HealthReport, Source, Vitals, XidReport
from dra_driver.hardware.facts import DeviceNode, Edits, Facts, GpuFacts, PartitionFacts, Problem
from dra_driver.hardware.pci import is_vfio
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.profile import SimulatedGpu
from dra_driver.hardware.vfio import GENERAL, variant_of

# Edits of simulated devices: the real device nodes' names, with the numbers of /dev/null or of the profile.

_NULL = 1, 3
CHANNEL_MAJOR = 1

# Numbers of MIG capability nodes as the driver assigns them: 2 global ones, then 15 GPU instances for each GPU, each of
# which has one for itself and 8 for compute instances.
_CAPS_FIRST, _CAPS_INSTANCES, _CAPS_A_INSTANCE = 3, 15, 9
# Minors of the profile's own major: 32 for each GPU (its node, two for each of 15 GPU instances, one for VFIO), and the
# control nodes after those of all GPUs (at most 4096).
OF_A_GPU, _CONTROL = 32, 4096 * 32


@dataclass(frozen=True, slots=True)
class SimulatedNodes:
    """The device nodes of simulated GPUs. Without a major of their own all of them are /dev/null."""

    major: int | None = None
    roots: Roots = field(default_factory=Roots)

    def common_edits(self) -> Edits:
        """Return the control nodes, and the environment that keeps other runtimes from adding GPUs."""
        return _COMMON if self.major is None else _common(self)

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return the GPU's node, and for a partition its two capability nodes."""
        nodes = [self.node(f"/dev/nvidia{gpu.minor}", _minor(gpu.minor))]
        if partition is not None:
            first = _first_capability(gpu.minor, partition.gi_id)
            minors = (_minor(gpu.minor, partition.gi_id), _minor(gpu.minor, partition.gi_id) + 1)
            caps = zip((first, first + 1 + partition.ci_id), minors, strict=True)
            nodes += [self.node(f"/dev/nvidia-caps/nvidia-cap{cap}", minor) for cap, minor in caps]
        return Edits(device_nodes=tuple(nodes))

    def users(self, gpu: SimulatedGpu, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the processes that the profile lists for the GPU, and those that have the device's node open."""
        if self.major is None:
            return gpu.processes
        minor = _minor(gpu.minor, partition.gi_id if partition else None)
        return (*gpu.processes, *processes_with(self.roots, (), numbers=[os.makedev(self.major, minor)]))

    def node(self, path: str, minor: int) -> DeviceNode:
        """Return one node."""
        numbers = _NULL if self.major is None else (self.major, minor)
        return DeviceNode(path=path, major=numbers[0], minor=numbers[1], file_mode=0o666)


def channel_edits() -> Edits:
    """Return the node of an IMEX channel."""
    return Edits(device_nodes=(SimulatedNodes().node("/dev/nvidia-caps-imex-channels/channel0", 0),))


def _minor(gpu: int, gi_id: int | None = None) -> int:
    """Return the minor of a GPU's node, or of the capability of one of its instances."""
    return gpu * OF_A_GPU + (0 if gi_id is None else 2 * gi_id - 1)


def _first_capability(minor: int, gi_id: int) -> int:
    return _CAPS_FIRST + (minor * _CAPS_INSTANCES + gi_id) * _CAPS_A_INSTANCE


def _common(nodes: SimulatedNodes) -> Edits:
    names = enumerate(("nvidiactl", "nvidia-uvm"), _CONTROL)
    return Edits(
        device_nodes=tuple(nodes.node(f"/dev/{name}", minor) for minor, name in names),
        env=("NVIDIA_VISIBLE_DEVICES=void",),
    )


# The same object for all claims, because the writer of CDI files keeps what it rendered for the last one.
_COMMON = _common(SimulatedNodes())


GPU_CLASS, AUDIO_CLASS, BRIDGE_CLASS = 0x030200, 0x040300, 0x060400
_NULL_DEVICE = Path("/dev/null")
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
        return real._replace(sys=str(self._sys), dev=str(self._dev))

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
            path.symlink_to(_NULL_DEVICE)
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


# The health of simulated GPUs, reported from the profile as a real vendor would report it.

POLL_SECONDS = 10.0


class SimulatedHealthReporter:
    """A reporter that remembers what it has reported. For use by a single thread."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._reported: dict[str, int] = {}  # how many Xids of each GPU were reported
        self._stamp: Hashable = None
        self._polled_at = float("-inf")
        self._hanging_since: float | None = None

    def report(
        self, facts: Facts, gpus: Mapping[str, SimulatedGpu], stamp: Stamp | None, *, is_urgent: bool
    ) -> HealthReport:
        """Return what is new; vitals only when a round of polling is due or the file changed."""
        now = self._clock()
        is_first = self._stamp is None and stamp is not None
        age = max(0.0, time.time() - stamp.mtime_ns / 1e9) if is_first and stamp else 0.0
        xids = tuple(self._xids(gpus, now - age))
        hangs = any(gpu.health.hangs for gpu in gpus.values())
        self._hanging_since = (self._hanging_since or now) if hangs else None
        if self._hanging_since is not None:
            self._stamp = stamp
            return HealthReport(xids, silent_s=now - self._hanging_since)
        is_due = is_urgent or bool(xids) or stamp != self._stamp or now - self._polled_at >= POLL_SECONDS
        if not is_due:
            return HealthReport()
        self._stamp, self._polled_at = stamp, now
        uuids = {gpu.pci_address: gpu.uuid for gpu in facts.gpus}
        return HealthReport(xids, tuple(_vitals(gpu, uuids.get(gpu.pci_address, ""), now) for gpu in gpus.values()))

    def _xids(self, gpus: Mapping[str, SimulatedGpu], at: float) -> Iterator[XidReport]:
        for address, gpu in gpus.items():
            for index in range(self._reported.get(address, 0), len(gpu.health.xids)):
                xid = gpu.health.xids[index]
                yield XidReport(address, xid.code, at + index / 1e6, Source.EVENT, xid.gi_id)
            self._reported[address] = len(gpu.health.xids)


def _vitals(gpu: SimulatedGpu, uuid: str, now: float) -> Vitals:
    health = gpu.health
    if gpu.is_lost or health.bus is not BusState.HERE:
        return Vitals(gpu.pci_address, now, is_lost=True)
    links = gpu.links_up if gpu.links_up is not None else gpu.model.nvlinks or 0
    return Vitals(
        gpu.pci_address,
        now,
        uuid,
        recovery_action=health.recovery_action,
        ecc_uncorrectable=health.ecc_uncorrectable,
        sram_threshold_exceeded=health.sram_threshold_exceeded,
        remap_pending=health.remap_pending,
        remap_failed=health.remap_failed,
        thermal_margin=health.thermal_margin,
        slowdown_margin=health.slowdown_margin,
        clock_reasons=health.clock_reasons,
        links=tuple(link not in health.links_down for link in range(links)),
        fabric_summary=health.fabric_summary,
        pcie_replays=health.pcie_replays,
    )


# The PCI bus of simulated hardware, created when it is first needed and kept until the next boot.

_DRIVER = "nvidia"
_USUAL_ID = 0x233010DE  # an H100


class SimulatedBus:
    """The bus of one node below its state folder, or in a folder of this process alone."""

    def __init__(self, state_dir: Path | None, boot_id: str, roots: Roots, node_major: int | None = None) -> None:
        self._folder = (state_dir or _own_folder()) / "simulated-bus"
        self._boot_id, self._roots, self._node_major = boot_id, roots, node_major
        self._kernel: SimulatedKernel | None = self._opened() if self._home.is_dir() else None

    def access(self, gpus: Iterable[GpuFacts]) -> BusAccess:
        """Return the bus with these GPUs on it. It is created if it does not exist yet in this boot."""
        if self._kernel is None:
            from shutil import rmtree  # noqa: PLC0415 - only where a GPU is passed through

            rmtree(self._folder, ignore_errors=True)
            kernel = self._opened()
            kernel.add_driver(GENERAL)
            for group, gpu in enumerate(gpus, 1):
                pci_id = gpu.pci_id or _USUAL_ID
                kernel.add_driver(variant_of(pci_id))
                kernel.add_function(gpu.pci_address, _DRIVER, group, pci_id=pci_id)
            self._kernel = kernel
        return BusAccess(self._kernel.roots(self._roots), self._kernel)

    def bound_elsewhere(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return which of these GPUs the vendor's driver does not have; none if there is no bus."""
        kernel = self._kernel
        return (
            frozenset(one for one in addresses if kernel.driver_of(one) not in {_DRIVER, ""}) if kernel else frozenset()
        )

    def without_gpus_bound_elsewhere(self, facts: Facts) -> Facts:
        """Return the facts without the GPUs that another driver has: a vendor's library does not report those."""
        bound_elsewhere = self.bound_elsewhere(gpu.pci_address for gpu in facts.gpus)
        if not bound_elsewhere:
            return facts
        gone = [Problem("hardware.gpu-not-driven", one, self._bound_to(one)) for one in sorted(bound_elsewhere)]
        here = tuple(gpu for gpu in facts.gpus if gpu.pci_address not in bound_elsewhere)
        return replace(facts, gpus=here, problems=(*facts.problems, *gone))

    def _bound_to(self, address: str) -> str:
        driver = self._kernel.driver_of(address) if self._kernel else ""
        return f"GPU is bound to {driver}, not to {_DRIVER}"

    def _opened(self) -> SimulatedKernel:
        return SimulatedKernel(self._home, self._node_major)

    @property
    def _home(self) -> Path:
        return self._folder / (self._boot_id or "boot")


def _own_folder() -> Path:
    from tempfile import mkdtemp  # noqa: PLC0415 - an agent has a state folder

    return Path(mkdtemp(prefix="bus-"))
