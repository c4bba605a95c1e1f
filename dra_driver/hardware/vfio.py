"""PCI functions as the kernel shows them: bound driver, class, IOMMU group, addressable memory.

In: roots and an address. Out: values read now. Nothing is raised for a missing file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.flags import RegisteredVendor
from dra_driver.hardware.facts import DeviceNode
from dra_driver.hardware.pci import (
    entries_of,
    function_folder,
    is_alive,
    is_vfio,
    read_driver,
    read_hex,
    read_pci_id,
    read_text,
)
from dra_driver.hardware.pci import read_physical as physical_of
from dra_driver.hardware.port import Roots

_IORESOURCE_MEM = 0x200  # include/linux/ioport.h
_BARS = 6  # the lines of `resource` before the ROM and the bridge windows
_BRIDGE = 0x06


@dataclass(frozen=True, slots=True)
class PciFunctionState:
    """One PCI function now. `driver` is the bound driver, "" for none; `pci_class` has 24 bits."""

    address: str
    driver: str
    pci_class: int
    group: int | None

    @property
    def is_bridge(self) -> bool:
        """Return whether it is a bridge, which may stay with the host's driver in the group of a passed function."""
        return self.pci_class >> 16 == _BRIDGE

    @property
    def slot(self) -> str:
        """Return the address without the function's number."""
        return self.address.rpartition(".")[0]

    def __str__(self) -> str:
        return f"{self.address} ({self.driver or 'no driver'})"


def read_function(roots: Roots, address: str) -> PciFunctionState | None:
    """Return a function as it is now, or None if it is not on the bus."""
    folder = function_folder(roots, address)
    if not folder.exists():
        return None
    return PciFunctionState(
        address, read_driver(str(folder)) or "", read_hex(folder / "class"), _group_of(folder / "iommu_group")
    )


def read_group_members(roots: Roots, group: int) -> tuple[PciFunctionState, ...]:
    """Return the functions of an IOMMU group, in the order of their addresses."""
    names = entries_of(Path(roots.sys, "kernel/iommu_groups", str(group), "devices"))
    found = (read_function(roots, name) for name in names)
    return tuple(one for one in found if one is not None)


def read_addressable_bytes(roots: Roots, address: str) -> int:
    """Return how many bytes of memory the function's base address registers show together.

    Source: sysfs-bus-pci, `resource`: one line of start, end and flags for each register.
    """
    text = read_text(function_folder(roots, address) / "resource") or ""
    return sum(_size_of(line) for line in text.splitlines()[:_BARS])


def read_override(roots: Roots, address: str) -> str:
    """Return the only driver that may bind the function, or "" if any driver may."""
    text = read_text(function_folder(roots, address) / "driver_override") or ""
    return "" if text == "(null)" else text


def has_virtual_functions(roots: Roots, address: str) -> bool:
    """Return whether virtual functions of this function exist; one that can't have any lacks the file."""
    text = read_text(function_folder(roots, address) / "sriov_numvfs") or "0"
    return text not in {"", "0"}


def read_physical(roots: Roots, address: str) -> str:
    """Return the address of the physical function behind a virtual one, "" for any other function."""
    return physical_of(function_folder(roots, address)) or ""


def is_of(roots: Roots, address: str, vendor: RegisteredVendor) -> bool:
    """Return whether a function on the bus is a GPU of a vendor, whatever drives it."""
    folder = function_folder(roots, address)
    return read_hex(folder / "vendor") == vendor.pci_vendor and read_hex(folder / "class") >> 16 in vendor.pci_classes


def can_be_reset(roots: Roots, address: str) -> bool:
    """Return whether the kernel has a way to reset this function."""
    return (function_folder(roots, address) / "reset").exists()


def answers(roots: Roots, address: str) -> bool:
    """Return whether the function's configuration space can be read and is not all ones, as that of a dead one is."""
    return is_alive(function_folder(roots, address) / "config") is True


def _group_of(link: Path) -> int | None:
    try:
        name = os.readlink(link).rpartition("/")[2]  # noqa: PTH115 - the name alone
    except OSError:
        return None
    return int(name) if name.isdecimal() else None


def _size_of(line: str) -> int:
    try:
        start, end, flags = (int(word, 16) for word in line.split())
    except ValueError:
        return 0
    return end - start + 1 if flags & _IORESOURCE_MEM and end > start else 0


# The identity of a PCI function, whatever drives it: its numbers in sysfs, and its serial number where it has one.

_NUMBERS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "class")
_SPACE_BYTES, _EXTENDED = 4096, 0x100  # of the configuration space: all of it, and where the extended part begins
_SERIAL_NUMBER = 0x0003
_EMPTY = (b"\0" * 8, b"\xff" * 8)


@dataclass(frozen=True, slots=True)
class PciIdentity:
    """`numbers` are those in sysfs, in one text; `serial` is the serial number, "" if none can be read."""

    numbers: str = ""
    serial: str = ""

    def difference_from(self, before: PciIdentity) -> str:
        """Return in words how this differs from what was read before; "" where it does not, or nothing is known.

        >>> PciIdentity("8086:56c0", "00-11").difference_from(PciIdentity("8086:56c0", "00-22"))
        'its serial number is 00-11, but was 00-22'
        """
        if before.numbers and self.numbers != before.numbers:
            return f"its PCI numbers are {self.numbers or 'missing'}, but were {before.numbers}"
        if before.serial and self.serial != before.serial:
            return f"its serial number is {self.serial or 'missing'}, but was {before.serial}"
        return ""


UNKNOWN = PciIdentity()


def read_identity(roots: Roots, address: str) -> PciIdentity:
    """Return what identifies a function now; nothing for one that is not on the bus."""
    folder = function_folder(roots, address)
    found = [f"{name} {value}" for name in _NUMBERS if (value := read_text(folder / name))]
    return PciIdentity(", ".join(found)[:200], _serial_in(_space(folder / "config")))


def _space(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(_SPACE_BYTES) or b""
    except OSError:
        return b""


def _serial_in(space: bytes) -> str:
    for offset, number in _capabilities(space):
        value = space[offset + 4 : offset + 12]
        if number == _SERIAL_NUMBER and len(value) == len(_EMPTY[0]) and value not in _EMPTY:
            return value[::-1].hex("-")
    return ""


def _capabilities(space: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and number of each extended capability; a list that leads nowhere, or in a circle, ends there."""
    offset, seen = _EXTENDED, set[int]()
    while _EXTENDED <= offset <= len(space) - 4 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        yield offset, header & 0xFFFF
        offset = header >> 20 & 0xFFC


# VFIO drivers: the one that a function needs, and the name under which the kernel has it.

GENERAL = "vfio-pci"
_NVGRACE = "nvgrace_gpu_vfio_pci"
# By PCI vendor: the variant for its virtual functions, used where it is loaded.
_VARIANTS_OF_FUNCTIONS = {0x8086: "xe_vfio_pci"}
_VARIANTS = {id_ << 16 | 0x10DE: _NVGRACE for id_ in (0x2342, 0x2345, 0x2348, 0x2941, 0x31C2)}


def variant_of(pci_id: int) -> str:
    """Return the driver that a GPU of this identity (device and vendor, 16 bits each) needs.

    >>> variant_of(0x294110DE), variant_of(0x233010DE)
    ('nvgrace_gpu_vfio_pci', 'vfio-pci')
    """
    return _VARIANTS.get(pci_id, GENERAL)


def needed_driver(roots: Roots, address: str, wanted: str = "") -> str:
    """Return the driver for a function, as sysfs spells it; `wanted` is an administrator's choice.

    Raises: HardwareError("hardware.module-missing", LATER) naming the module that has to be loaded.
    """
    pci_id = read_pci_id(roots, address) or 0
    name = wanted or variant_of(pci_id)
    is_function = not wanted and read_physical(roots, address) != ""
    better = _VARIANTS_OF_FUNCTIONS.get(pci_id & 0xFFFF, "") if is_function else ""
    found = _loaded(roots, better) or _loaded(roots, name)
    if found:
        return found
    module = name.replace("-", "_")
    raise HardwareError(
        "module-missing",
        f"the kernel module {module}, which GPU {address} needs for a virtual machine, is not loaded",
        hint=f"load it on the host, at each boot too: a line `{module}` in /etc/modules-load.d/",
        retry=Retry.LATER,
    )


def _loaded(roots: Roots, name: str) -> str:
    """Return a driver as sysfs spells it, or "" where it is not loaded."""
    if not name:
        return ""
    folder = Path(roots.sys, "bus/pci/drivers")
    spellings = dict.fromkeys((name, name.replace("_", "-"), name.replace("-", "_")))
    return next((spelling for spelling in spellings if (folder / spelling / "bind").exists()), "")


# Readiness: whether this node's kernel keeps virtual machines apart from its memory.

_UNSAFE_INTERRUPTS = ("vfio_iommu_type1", "iommufd")
_ON = {"Y", "y", "1"}


def require_safe_iommu(roots: Roots) -> None:
    """Refuse a node on which a virtual machine could reach the host's memory.

    Raises: HardwareError("hardware.no-iommu"), ("hardware.noiommu-mode"), ("hardware.unsafe-interrupts").
    """
    modules = Path(roots.sys, "module")
    if _is_on(modules / "vfio/parameters/enable_unsafe_noiommu_mode"):
        raise _refusal("noiommu-mode", "vfio runs with enable_unsafe_noiommu_mode, which gives VMs the host's memory")
    if not any(entries_of(Path(roots.sys, "kernel/iommu_groups"))):
        raise HardwareError(
            "no-iommu",
            "this node has no IOMMU groups, so no GPU can be passed to a virtual machine",
            hint="switch the IOMMU on: VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line",
            retry=Retry.LATER,
        )
    for module in _UNSAFE_INTERRUPTS:
        if _is_on(modules / module / "parameters/allow_unsafe_interrupts"):
            text = f"{module} runs with allow_unsafe_interrupts, which lets VMs raise the host's interrupts"
            raise _refusal("unsafe-interrupts", text)


def require_passable(roots: Roots, address: str) -> None:
    """Refuse a function that is divided now, or that could not be reset after a virtual machine had it.

    Raises: HardwareError("hardware.has-virtual-functions"), ("hardware.no-reset").
    """
    if has_virtual_functions(roots, address):
        hint = "remove its virtual functions first, or name those for virtual machines"
        raise HardwareError("has-virtual-functions", f"GPU {address} has virtual functions", hint=hint)
    if not can_be_reset(roots, address):
        text = f"GPU {address} can't be reset, so the next user would find what a virtual machine left in it"
        raise HardwareError("no-reset", text)


def has_iommufd(roots: Roots) -> bool:
    """Return whether the kernel offers devices through iommufd beside the legacy groups."""
    return Path(roots.dev, "iommu").exists()


def _is_on(parameter: Path) -> bool:
    return read_text(parameter) in _ON


def _refusal(code: str, text: str) -> HardwareError:
    hint = "take the module's parameter back and load it again (docs/kubevirt.md)"
    return HardwareError(code, text, hint=hint, retry=Retry.LATER)


# IOMMU groups: the functions that have to leave the host's drivers together, and those that prevent it.

_STUB = "pci-stub"
# Classes of the functions that a graphics card has beside the GPU: audio, USB host controller, USB-C controller.
_COMPANIONS = (0x0403, 0x0C03, 0x0C80)


@dataclass(frozen=True, slots=True)
class PassthroughGroup:
    """An IOMMU group, and the functions of it that go to the virtual machine: the GPU first, then its companions."""

    number: int
    functions: tuple[PciFunctionState, ...]


def read_passthrough_group(roots: Roots, address: str) -> PassthroughGroup:
    """Return what has to be bound to a VFIO driver so that a GPU can be passed through.

    Raises: HardwareError("hardware.gpu-gone", LATER), ("hardware.no-iommu-group"), ("hardware.group-not-viable") with
    the functions that prevent it.
    """
    gpu = read_function(roots, address)
    if gpu is None:
        raise HardwareError("gpu-gone", f"GPU {address} is not on the PCI bus", retry=Retry.LATER)
    if gpu.group is None:
        raise HardwareError(
            "no-iommu-group",
            f"GPU {address} is in no IOMMU group, so it can't be passed to a virtual machine",
            hint="switch the IOMMU on: VT-d or AMD-Vi in the firmware, intel_iommu=on on the kernel's command line",
        )
    others = [member for member in read_group_members(roots, gpu.group) if member.address != address]
    companions = tuple(other for other in others if _is_companion(other, gpu))
    blockers = [other for other in others if other not in companions and not _is_harmless(other)]
    if blockers:
        raise HardwareError(
            "group-not-viable",
            f"GPU {address} shares IOMMU group {gpu.group} with {', '.join(map(str, blockers))}, which the host uses",
            hint="move the card to a slot with a group of its own, or release those functions from their drivers",
        )
    return PassthroughGroup(gpu.group, (gpu, *companions))


def _is_companion(one: PciFunctionState, gpu: PciFunctionState) -> bool:
    return one.slot == gpu.slot and one.pci_class >> 8 in _COMPANIONS


def _is_harmless(one: PciFunctionState) -> bool:
    return not one.driver or one.is_bridge or one.driver == _STUB or is_vfio(one.driver)


# Device nodes by which a virtual machine gets a function: of its IOMMU group, or its own below iommufd.

_DEV = "/dev"


def function_node(roots: Roots, address: str, group: int, *, prefers_iommufd: bool) -> DeviceNode:
    """Return the node of a function that a VFIO driver has. Raises: HardwareError("hardware.node-missing", LATER)."""
    return _node(roots, function_node_name(roots, address, group, prefers_iommufd=prefers_iommufd))


def api_node(roots: Roots, *, prefers_iommufd: bool) -> DeviceNode:
    """Return the node by which a virtual machine maps memory. Raises: HardwareError("hardware.node-missing", LATER)."""
    return _node(roots, "iommu" if prefers_iommufd and has_iommufd(roots) else "vfio/vfio")


def function_node_name(roots: Roots, address: str, group: int, *, prefers_iommufd: bool) -> str:
    """Return the name of a function's node below /dev. Raises: HardwareError("hardware.node-missing", LATER)."""
    if not (prefers_iommufd and has_iommufd(roots)):
        return f"vfio/{group}"
    found = next((n for n in entries_of(function_folder(roots, address) / "vfio-dev") if n.startswith("vfio")), None)
    if found is None:
        text = f"the kernel has iommufd, but created no device node for {address}"
        raise HardwareError("node-missing", text, hint="use backendPolicy LegacyOnly", retry=Retry.LATER)
    return f"vfio/devices/{found}"


def every_node_name(roots: Roots, address: str, group: int) -> tuple[str, ...]:
    """Return the names of all nodes below /dev by which a virtual machine may have a function open."""
    own = entries_of(function_folder(roots, address) / "vfio-dev")
    return (f"vfio/{group}", *(f"vfio/devices/{name}" for name in own))


def _node(roots: Roots, name: str) -> DeviceNode:
    path = Path(roots.dev, name)
    try:
        found = path.stat()
    except OSError as error:
        raise HardwareError("node-missing", f"{_DEV}/{name} does not exist", retry=Retry.LATER) from error
    return DeviceNode(
        f"{_DEV}/{name}",
        os.major(found.st_rdev),
        os.minor(found.st_rdev),
        host_path="" if roots.dev == _DEV else str(path),
    )
