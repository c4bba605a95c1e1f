"""PCI functions and small files of sysfs, for the devices of every vendor.

In: roots and PCI addresses. Out: plain values. Nothing here raises for a missing file: None, 0 or nothing is returned.
No more than 1 MiB of a file is read, because the tree may be mounted from anywhere.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.flags import VENDORS, RegisteredVendor
from dra_driver.base.names import normal_pci_address
from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.facts import DeviceNode, Edits, Problem
from dra_driver.hardware.port import Roots

_PIECE_BYTES, _MAX_BYTES = 4096, 1 << 20
_HEADER_BYTES = 16  # of the configuration space: numbers, command, status, class
MAX_MEMORY_BYTES = 1 << 60  # no device has an exbibyte: a larger number is a file that was misread
_HEXADECIMAL = re.compile(r"(0[xX])?[0-9a-fA-F]{1,8}")
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_text(path: str | os.PathLike[str]) -> str | None:
    """Return a small file's text, stripped, or None when it can't be read.

    Some files of drivers and firmware are padded with NUL bytes; the text ends at the first.
    """
    try:
        return read_readable(path)
    except OSError:
        return None


def read_readable(path: str | os.PathLike[str]) -> str | None:
    """Return the same, or None only when there is no such file. Raises: OSError when it is there and can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return _read_all(fd).decode("utf-8", "replace").partition("\0")[0].strip()
    finally:
        os.close(fd)


def read_at_once(path: str) -> bytes:
    """Return what one read of a kernel's file returns, b"" when it can't be read.

    For files of a few lines that the kernel renders as a whole, read within every call.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, _PIECE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_label(path: str | os.PathLike[str]) -> str | None:
    """Return a small file's text as one line of printable characters, or None if it has none."""
    shown = "".join(one if one.isprintable() else " " for one in read_text(path) or "")
    return " ".join(shown.split()) or None


def _read_all(fd: int) -> bytes:
    content = b""
    while (piece := os.read(fd, _PIECE_BYTES)) and len(content) < _MAX_BYTES:
        content += piece  # a read may return less than is left of the file
    return content


def read_hex(path: Path) -> int:
    """Return the number in a file that holds one in hexadecimal, or 0."""
    text = read_text(path) or ""
    return int(text, 16) if _HEXADECIMAL.fullmatch(text) else 0


def read_size(path: Path) -> int | None:
    """Return the number of bytes in a file, or None if it is not a size that memory can have."""
    text = read_text(path) or ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
    return number if 0 < number < MAX_MEMORY_BYTES else None


def entries_of(folder: Path) -> Iterator[str]:
    """Yield the names in a folder in order; none if it can't be read."""
    try:
        yield from sorted(os.listdir(folder))  # noqa: PTH208 - names only, and this runs every two seconds
    except OSError:
        return


def entries_of_process(folder: str) -> list[str]:
    """Return the names in a folder of procfs; none if its process has ended, or may not be looked at.

    Raises: HardwareError("hardware.gpu-in-use", LATER) if the agent can't open it now: who isn't seen may use a GPU.
    """
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            text = f"it can't be seen now which processes have a GPU open: {error.strerror}"
            raise HardwareError("gpu-in-use", text, retry=Retry.LATER) from error
        return []


def read_driver(path: str) -> str | None:
    """Return the kernel driver that is bound to the PCI function of a folder, or None."""
    try:
        return os.readlink(f"{path}/driver").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for a writer


def is_alive(config: Path) -> bool | None:
    """Return whether a configuration space answers, or None if it can't be read. A dead function reads all ones.

    The vendor's and the device's number alone prove nothing: those of a virtual function are always ones.
    Source: PCI Express, SR-IOV, "VF Configuration Space": Vendor ID and Device ID.
    """
    try:
        with open(config, "rb", opener=_open_at_once) as file:
            header = file.read(_HEADER_BYTES) or b""
    except OSError:
        return None
    return header.strip(b"\xff") != b"" if header else None


def function_folder(roots: Roots, address: str) -> Path:
    """Return the folder of a PCI function below sysfs, whether it exists or not."""
    domain, _, rest = address.partition(":")
    return Path(roots.sys, "bus/pci/devices", f"{int(domain, 16):04x}:{rest}")


def read_physical(folder: Path) -> str | None:
    """Return the address of the physical function behind a virtual one (SR-IOV), or None for any other function."""
    try:
        return normal_pci_address(os.readlink(folder / "physfn").rpartition("/")[2])  # noqa: PTH115
    except (OSError, ValueError):
        return None


def read_numa_node(roots: Roots, address: str) -> int | None:
    """Return the NUMA node of a PCI function, or None if the kernel reports none (-1)."""
    return read_numa(function_folder(roots, address))


def read_numa(folder: Path) -> int | None:
    """Return the NUMA node of the PCI function of a folder, or None if the kernel reports none (-1)."""
    text = read_text(folder / "numa_node") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else None


def read_pci_id(roots: Roots, address: str) -> int | None:
    """Return a PCI function's device and vendor id in one number (0x233010DE), or None where sysfs lacks them."""
    folder = function_folder(roots, address)
    device, vendor = read_hex(folder / "device"), read_hex(folder / "vendor")
    return device << 16 | vendor if device and vendor else None


def read_pcie_root(roots: Roots, address: str) -> str | None:
    """Return the PCIe root complex above a function, in the form `pci0000:64`.

    Source: the standard attribute resource.kubernetes.io/pcieRoot: first such part of the sysfs device's real path.
    """
    return pcie_root_above(function_folder(roots, address))


def pcie_root_above(folder: Path) -> str | None:
    """Return the PCIe root complex above the PCI function to which a folder is a link, or None if it is not a link."""
    return next((part for part in _target_of(folder).split("/") if _PCIE_ROOT.fullmatch(part)), None)


def _target_of(link: Path) -> str:
    """Return the path of the folder that a link leads to, "" if it is no link, or vanishes while it is followed."""
    try:
        return os.path.realpath(link) if os.path.islink(link) else ""  # noqa: PTH114
    except OSError:
        return ""


# GPUs behind the kernel's DRM subsystem: their PCI functions and DRM nodes, from sysfs.

_CARD, _RENDER = re.compile(r"card\d+"), re.compile(r"renderD(\d+)")
_PCI_ID = re.compile(r"^PCI_ID=([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})$", re.MULTILINE)
_SLOT = re.compile(r"^PCI_SLOT_NAME=(\S+)$", re.MULTILINE)
_DRIVER = re.compile(r"^DRIVER=(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DrmNodes:
    """The DRM nodes of one device: `card` by name ("card1"), the render node by its minor; None for a missing one."""

    card: str | None = None
    render_minor: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the nodes below /dev, the card first."""
        return names_of_nodes(self.card, -1 if self.render_minor is None else self.render_minor)


@dataclass(frozen=True, slots=True)
class DrmFunction:
    """One GPU that a kernel driver drives. `folder` is that of the PCI function."""

    address: str
    folder: Path
    driver: str
    drm: DrmNodes

    @property
    def device_id(self) -> int | None:
        """Return the PCI device id, or None if no file has it."""
        found = _PCI_ID.search(read_text(self.folder / "uevent") or "")
        return read_hex(self.folder / "device") or (int(found[2], 16) if found else None)

    @property
    def revision(self) -> int | None:
        """Return the PCI revision, or None if no file has it."""
        text = read_text(self.folder / "revision")
        return read_hex(self.folder / "revision") if text else None


def names_of_nodes(card: str | None, render_minor: int) -> tuple[str, ...]:
    """Return the names of DRM nodes below /dev, without those that do not exist.

    >>> names_of_nodes("card1", 128), names_of_nodes(None, -1)
    (('dri/card1', 'dri/renderD128'), ())
    """
    render = (f"dri/renderD{render_minor}",) if render_minor >= 0 else ()
    return (*((f"dri/{card}",) if card else ()), *render)


def read_functions(roots: Roots, vendor: RegisteredVendor, drivers: tuple[str, ...]) -> tuple[DrmFunction, ...]:
    """Return the GPUs that a vendor's kernel drivers drive, each once."""
    found: dict[str, DrmFunction] = {}
    for function in (*_of_drivers(roots, drivers), *_of_drm_class(roots, vendor, drivers)):
        found.setdefault(function.address, function)
    return tuple(found[address] for address in sorted(found))


def _of_drivers(roots: Roots, drivers: tuple[str, ...]) -> Iterator[DrmFunction]:
    for driver in drivers:
        for below in (f"bus/pci/drivers/{driver}", f"module/{driver}/drivers/pci:{driver}"):
            folder = Path(roots.sys, below)
            for name in entries_of(folder):
                address = _address(name)
                if address is not None:
                    yield DrmFunction(address, folder / name, driver, read_drm(folder / name / "drm"))


def _of_drm_class(roots: Roots, vendor: RegisteredVendor, drivers: tuple[str, ...]) -> Iterator[DrmFunction]:
    """Yield the functions behind a vendor's DRM devices; the folder has those of the machine's other vendors, too."""
    classes = Path(roots.sys, "class/drm")
    names = tuple(entries_of(classes))
    renders = {_slot(classes / name / "device"): int(found[1]) for name in names if (found := _RENDER.fullmatch(name))}
    for name in names:
        folder = classes / name / "device"
        if _CARD.fullmatch(name) and _vendor(folder) == vendor.pci_vendor:
            found = _DRIVER.search(read_text(folder / "uevent") or "")
            driver = found[1] if found else read_driver(os.fspath(folder))
            address = _slot(folder)
            if address is not None and driver in drivers:
                yield DrmFunction(address, folder, driver, DrmNodes(name, renders.get(address)))


def _vendor(folder: Path) -> int:
    found = _PCI_ID.search(read_text(folder / "uevent") or "")
    return read_hex(folder / "vendor") or (int(found[1], 16) if found else 0)


def _slot(folder: Path) -> str | None:
    """Return the PCI address of a DRM device's parent, or None for one that is no PCI function (a partition)."""
    found = _SLOT.search(read_text(folder / "uevent") or "")
    return _address(found[1] if found else _target_of(folder).rpartition("/")[2])


def _address(text: str) -> str | None:
    try:
        return normal_pci_address(text)
    except ValueError:
        return None


def read_drm(folder: Path) -> DrmNodes:
    """Return the DRM nodes in the `drm` folder of a device. A missing node is None: its number is never guessed."""
    names = tuple(entries_of(folder))
    renders = [int(found[1]) for name in names if (found := _RENDER.fullmatch(name))]
    return DrmNodes(next((name for name in names if _CARD.fullmatch(name)), None), renders[0] if renders else None)


def read_device_nodes(roots: Roots) -> tuple[str, ...]:
    """Return the names of the cards and render nodes in the folder of devices."""
    names = entries_of(Path(roots.dev, "dri"))
    return tuple(name for name in names if name.startswith(("card", "renderD")))


def on_bus(roots: Roots, vendor: RegisteredVendor) -> tuple[tuple[str, str | None], ...]:
    """Return the address and the driver of each function of a vendor on the bus that is a GPU, whatever its driver."""
    folder = Path(roots.sys, "bus/pci/devices")
    found = []
    for name in entries_of(folder):
        if read_hex(folder / name / "vendor") == vendor.pci_vendor:
            kind = read_hex(folder / name / "class") >> 16
            if kind in vendor.pci_classes:
                found.append((name, read_driver(os.fspath(folder / name))))
    return tuple(found)


_MANAGERS = frozenset(["gim"])  # drivers that divide a GPU into functions for machines; source: AMD's GIM


def undriven(roots: Roots, vendor: RegisteredVendor, drivers: tuple[str, ...]) -> Iterator[Problem]:
    """Yield a problem for each GPU of a vendor that none of its kernel drivers has, and that should have one.

    Virtual functions are made for virtual machines, so one with a VFIO driver is none; nor is a GPU whose driver makes
    such functions, or one of these without a driver.
    """
    for address, driver in on_bus(roots, vendor):
        if driver not in drivers and not _is_for_machines(roots, address, driver or ""):
            text = f"it is bound to {driver or 'no driver'}, not to {' or '.join(drivers)}"
            yield Problem("hardware.gpu-not-driven", address, text)


def _is_for_machines(roots: Roots, address: str, driver: str) -> bool:
    physical = read_physical(function_folder(roots, address))
    if driver in _MANAGERS or physical is None:
        return driver in _MANAGERS
    manager = read_driver(os.fspath(function_folder(roots, physical)))
    return is_vfio(driver) or (not driver and manager in _MANAGERS)


def is_vfio(driver: str) -> bool:
    """Return whether a kernel driver passes functions to virtual machines.

    >>> is_vfio("vfio-pci"), is_vfio("nvgrace_gpu_vfio_pci"), is_vfio("nvidia")
    (True, True, False)
    """
    return driver.replace("_", "-").endswith("vfio-pci")


# Edits for device nodes: each with its current device numbers, and its group if only the group has access.

_FOR_ALL = stat.S_IROTH | stat.S_IWOTH


def edits_of_nodes(names: Iterable[str], roots: Roots) -> Edits:
    """Return the edits of these nodes. Raises: HardwareError("hardware.node-missing", retry LATER)."""
    nodes, groups = [], set()
    for name in names:
        try:
            status = os.stat(f"{roots.dev}/{name}")  # noqa: PTH116 - faster, and a Prepare waits for it
        except OSError as error:
            raise node_missing(f"/dev/{name}") from error
        if not stat.S_ISCHR(status.st_mode):
            raise node_missing(f"/dev/{name} as a device")
        permissions = stat.S_IMODE(status.st_mode)
        nodes.append(
            DeviceNode(
                f"/dev/{name}",
                os.major(status.st_rdev),
                os.minor(status.st_rdev),
                host_path="" if roots.dev == "/dev" else f"{roots.dev}/{name}",
                file_mode=permissions,
                gid=status.st_gid,
            )
        )
        if permissions & _FOR_ALL != _FOR_ALL and status.st_gid:
            groups.add(status.st_gid)
    return Edits(tuple(nodes), additional_gids=tuple(sorted(groups)))


def node_missing(what: str) -> HardwareError:
    """Return the error for a node that does not exist yet."""
    hint = "the kernel's log says why; reload the GPU's driver or reboot the node"
    return HardwareError("node-missing", f"{what} does not exist", hint=hint, retry=Retry.LATER)


# The state of a GPU on the PCI bus: there, gone, dead, or bound to another driver.


def bus_state(roots: Roots, address: str, drivers: tuple[str, ...]) -> BusState:
    """Return the state of a GPU on the PCI bus. `drivers` are the kernel drivers that make the vendor's GPUs usable.

    If sysfs shows no PCI function at all, every GPU counts as there.
    """
    folder = function_folder(roots, address)
    if not any(entries_of(folder.parent)):
        return BusState.HERE
    if not os.path.exists(folder):  # noqa: PTH110 - does not raise where a folder above can't be searched
        return BusState.GONE
    if read_driver(str(folder)) not in drivers:
        return BusState.ELSEWHERE
    return BusState.DEAD if is_alive(folder / "config") is False else BusState.HERE


def bus_states(roots: Roots, addresses: tuple[str, ...], drivers: tuple[str, ...]) -> Mapping[str, BusState]:
    """Return the state on the bus of each of these GPUs, by PCI address."""
    return {address: bus_state(roots, address, drivers) for address in addresses}


# Presence: which vendors have a PCI function on this node, before anything of a vendor is loaded.


def vendors_on_bus(roots: Roots) -> tuple[RegisteredVendor, ...]:
    """Return the vendors of the registry that have a function on the PCI bus, in the order of the registry."""
    folder, found = Path(roots.sys, "bus/pci/devices"), set()
    for name in entries_of(folder):
        numbers = read_hex(folder / name / "vendor"), read_hex(folder / name / "class") >> 16
        found |= {one.name for one in VENDORS if numbers[0] == one.pci_vendor and numbers[1] in one.pci_classes}
    return tuple(one for one in VENDORS if one.name in found)
