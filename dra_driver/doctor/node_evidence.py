"""What this node shows: kernel driver, hardware, container runtime, sockets, ledger, CDI folder.

In: the hardware, roots and folders. Out: `NodeEvidence`; what this user may not read is listed as `Unexamined`. Nothing
is written, and plugins are asked for nothing but their identity.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi.ids import claim_uid_of
from dra_driver.doctor.device_users import DeviceUser, read_device_users
from dra_driver.doctor.finding import Unexamined
from dra_driver.doctor.kernel_driver import KernelDriver, read_kernel_driver
from dra_driver.doctor.ledger_rows import LedgerRow, read_ledger
from dra_driver.doctor.node_faults import NodeFaults, read_faults
from dra_driver.doctor.registrations import PluginSocket, read_registrations
from dra_driver.doctor.runtime_config import RuntimeConfig, read_runtimes
from dra_driver.hardware.facts import ChannelFacts, Facts
from dra_driver.hardware.port import ChannelOffering, Hardware, Roots
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.offering import Inventory
from dra_driver.model.errors import DriverError
from dra_driver.model.machine import read_boot_id
from dra_driver.plugin.ledger.record import UNFINISHED
from dra_driver.plugin.other_drivers.device_plugin import live_sockets

_LOOKS, _BETWEEN_LOOKS_SECONDS = 3, 0.5


@dataclass(frozen=True, slots=True)
class EvidenceFolders:
    """The folders to read. `host` is the root of the host's file system as this process sees it."""

    cdi: Path
    registrar: Path
    plugins: Path
    device_plugins: Path
    host: Path = Path("/")

    @property
    def is_kubelet_here(self) -> bool:
        """Whether a kubelet has created its folders; one that this user may not enter counts as created."""
        return any(_is_folder(one) or _is_closed(one.parent) for one in (self.registrar, self.plugins))


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises an error if this user may not look


def _is_closed(path: Path) -> bool:
    return _is_folder(path) and not os.access(path, os.X_OK)


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What was read from this node. A field is None if it could not be read; `unseen` explains why."""

    node: str
    driver: str
    vendor: str
    kernel: KernelDriver
    folders: EvidenceFolders
    runtimes: tuple[RuntimeConfig, ...]
    facts: Facts | None
    inventory: Inventory | None
    left_out: tuple[str, ...]
    sockets: tuple[PluginSocket, ...] | None
    device_plugins: tuple[str, ...]
    rows: tuple[LedgerRow, ...] | None
    ledger_fault: str
    cdi_uids: frozenset[str] | None
    boot_id: str
    unseen: tuple[Unexamined, ...]
    health: NodeFaults | None = None
    users: tuple[DeviceUser, ...] | None = None
    channel_state: str | None = None  # what the daemon of IMEX channels reports; None if there is no daemon


def read_node(node: str, driver: str, hardware: Hardware, roots: Roots, folders: EvidenceFolders) -> NodeEvidence:
    """Read this node. Something that can't be read is listed in `unseen` and does not raise."""
    unseen: list[Unexamined] = []
    facts, inventory, left_out = _look_at_hardware(hardware, unseen)
    rows, ledger_fault, cdi_uids = _look_at_prepared(folders, driver, unseen)
    return NodeEvidence(
        node=node,
        driver=driver,
        vendor=hardware.vendor,
        kernel=read_kernel_driver(roots, folders.host, hardware.vendor),
        folders=folders,
        runtimes=_look_at_runtimes(folders.host, unseen),
        facts=facts,
        inventory=inventory,
        left_out=left_out,
        sockets=_look_at_sockets(folders.registrar, unseen),
        device_plugins=tuple(str(path) for path in live_sockets(folders.device_plugins)),
        rows=rows,
        ledger_fault=ledger_fault,
        cdi_uids=cdi_uids,
        boot_id=_boot_id(roots),
        health=_look_at_health(folders.plugins / driver, unseen),
        users=_look_at_users(roots, unseen),
        channel_state=_channel_state(hardware, facts),
        unseen=tuple(unseen),
    )


def _look_at_users(roots: Roots, unseen: list[Unexamined]) -> tuple[DeviceUser, ...] | None:
    try:
        return read_device_users(Path(roots.proc), Path(roots.dev))
    except OSError as fault:
        unseen.append(Unexamined("processes that use the GPUs", f"{fault} can't be read: run as root"))
        return None


def _look_at_health(folder: Path, unseen: list[Unexamined]) -> NodeFaults | None:
    try:
        return read_faults(folder, time.time())
    except (DriverError, OSError) as error:
        unseen.append(Unexamined("health", f"{error}"))
        return None


def _channel_state(hardware: Hardware, facts: Facts | None) -> str | None:
    """Return what the daemon of IMEX channels reports; None on a node that can't have a channel."""
    if facts is None or not isinstance(hardware, ChannelOffering):
        return None
    return hardware.channel_state() if isinstance(hardware.channel(facts), ChannelFacts) else None


def _boot_id(roots: Roots) -> str:
    try:
        return read_boot_id(roots.proc)
    except OSError:
        return ""


def _look_at_hardware(
    hardware: Hardware, unseen: list[Unexamined]
) -> tuple[Facts | None, Inventory | None, tuple[str, ...]]:
    try:
        facts = hardware.discover()
        return facts, build_inventory(facts), hardware.edit_problems() if facts.gpus else ()
    except DriverError as error:
        unseen.append(Unexamined("hardware", f"{error} [{error.code}]"))
        return None, None, ()
    finally:
        hardware.close()


def _look_at_runtimes(host: Path, unseen: list[Unexamined]) -> tuple[RuntimeConfig, ...]:
    try:
        return read_runtimes(host)
    except PermissionError as fault:
        unseen.append(Unexamined("container runtime", f"{fault.filename} can't be read: run as root"))
        return ()


_Prepared = tuple[tuple[LedgerRow, ...] | None, str, frozenset[str] | None]


def _look_at_prepared(folders: EvidenceFolders, driver: str, unseen: list[Unexamined]) -> _Prepared:
    """Read the ledger and the CDI folder, and read them again if they differ: the agent may be changing them now."""
    for _ in range(_LOOKS):
        missed: list[Unexamined] = []
        rows, fault = _look_at_ledger(folders.plugins / driver / "ledger.db", missed)
        uids = _look_at_cdi(folders.cdi, driver, missed)
        if rows is None or uids is None or _agree(rows, uids):
            break
        time.sleep(_BETWEEN_LOOKS_SECONDS)
    unseen += missed
    return rows, fault, uids


def _agree(rows: tuple[LedgerRow, ...], uids: frozenset[str]) -> bool:
    is_settled = all(row.state not in UNFINISHED for row in rows)
    return is_settled and {row.uid for row in rows if row.has_file} == uids


def _look_at_ledger(path: Path, unseen: list[Unexamined]) -> tuple[tuple[LedgerRow, ...] | None, str]:
    closed = next((one for one in reversed(path.parents) if _is_closed(one)), None)
    if closed is not None:
        unseen.append(Unexamined("ledger", f"{closed} can't be entered: run as root"))
        return None, ""
    try:
        return read_ledger(path), ""
    except PermissionError:
        unseen.append(Unexamined("ledger", f"{path} can't be read: run as root"))
        return None, ""
    except ValueError as fault:
        return None, str(fault)


def _look_at_sockets(registrar: Path, unseen: list[Unexamined]) -> tuple[PluginSocket, ...] | None:
    try:
        return read_registrations(registrar)
    except PermissionError:
        unseen.append(Unexamined("registration sockets", f"{registrar} can't be read: run as root"))
    except FileNotFoundError:
        unseen.append(Unexamined("registration sockets", f"there is no {registrar}: no kubelet on this machine?"))
    return None


def _look_at_cdi(folder: Path, driver: str, unseen: list[Unexamined]) -> frozenset[str] | None:
    try:
        uids = (claim_uid_of(driver, path.name) for path in folder.iterdir())
        return frozenset(uid for uid in uids if uid)
    except FileNotFoundError:
        return frozenset()
    except PermissionError:
        unseen.append(Unexamined("CDI files", f"{folder} can't be read: run as root"))
        return None
