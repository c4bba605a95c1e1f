"""What this node shows: kernel driver, hardware, container runtime, sockets, ledger, CDI folder.

In: the hardware, roots and folders. Out: `NodeEvidence`; what this user may not read is listed as `Unexamined`. Nothing
is written, and plugins are asked for nothing but their identity.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dra_driver.base.errors import DriverError
from dra_driver.base.machine import read_boot_id
from dra_driver.base.wire import ClaimWire, Wire
from dra_driver.hardware.facts import ChannelFacts, Facts
from dra_driver.hardware.port import ChannelOffering, Hardware, Roots
from dra_driver.node.cdi import claim_uid_of
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.kubelet.methods import PLUGIN_TYPE
from dra_driver.node.kubelet.registration import RegisteredPlugin, ask
from dra_driver.node.kubelet.sockets import is_refused
from dra_driver.node.ledger.record import UNFINISHED
from dra_driver.node.ledger.unreleased import UnreleasedClaim, unreleased_of_row, unreleased_query
from dra_driver.node.neighbours.device_plugin import live_sockets
from dra_driver.tools.doctor.evidence import (
    ClusterEvidence,
    KernelDriver,
    LedgerRow,
    NodeFaults,
    RuntimeConfig,
    read_faults,
    read_kernel_driver,
    read_ledger,
    read_runtimes,
    rows_of,
)
from dra_driver.tools.doctor.finding import DeviceUser, Finding, Unexamined, read_device_users
from dra_driver.tools.world.pod_status import (
    PATIENCE_SECONDS,
    claim_names,
    condition_of,
    is_prepared,
    quoted,
    scheduler_message,
    seconds_since,
)

# Registrations: the plugins that answer on the sockets in which the kubelet looks for plugins.


@dataclass(frozen=True, slots=True)
class PluginSocket:
    """One registration socket. `plugin` is None if no plugin answered; `is_dead` means that no process listens."""

    path: str
    plugin: RegisteredPlugin | None = None
    is_dead: bool = False

    def serves(self, driver: str) -> bool:
        """Return whether a DRA plugin of this driver name answered."""
        return self.plugin is not None and self.plugin.kind == PLUGIN_TYPE and self.plugin.name == driver


def read_registrations(folder: Path) -> tuple[PluginSocket, ...]:
    """Ask the plugin on every socket for its identity.

    Raises: FileNotFoundError if there is no such folder, PermissionError if this user may not use it or a socket in it.
    """
    return tuple(_ask(path) for path in sorted(folder.iterdir()) if path.is_socket())


def _ask(path: Path) -> PluginSocket:
    if not os.access(path, os.W_OK):
        raise PermissionError(path)  # a plugin may answer there, but this user can't find out
    if is_refused(path):
        return PluginSocket(str(path), is_dead=True)
    return PluginSocket(str(path), ask(path))


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
    unreleased: tuple[UnreleasedClaim, ...] = ()
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
        unreleased=_look_at_unreleased(folders.plugins / driver / "ledger.db", _boot_id(roots)),
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
    closed = next((parent for parent in reversed(path.parents) if _is_closed(parent)), None)
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


def _look_at_unreleased(path: Path, boot_id: str) -> tuple[UnreleasedClaim, ...]:
    try:
        if not rows_of(path, tuple, "SELECT 1 FROM sqlite_master WHERE name = 'kept_nodes'"):
            return ()  # of an older agent
        found = rows_of(path, unreleased_of_row, *unreleased_query(boot_id))
    except (OSError, ValueError):  # said of the ledger already
        return ()
    return tuple(claim for claim in found if claim.is_in_force)


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


# Checks of ResourceClaims: not prepared in time, held by pods that have ended, on devices that are gone.

_ENDED = frozenset({"Succeeded", "Failed"})


def check_reservations(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each claim that is reserved by a pod that has ended or is gone."""
    if not cluster.has("pods", "claims"):
        return
    pods = {one["metadata"].get("uid"): one for one in cluster.of("pods")}
    for claim in _allocated(cluster):
        for user in claim["status"].get("reservedFor") or ():
            if user.get("resource") != "pods":
                continue
            pod = pods.get(user.get("uid"))
            phase = _phase(pod) if pod else ""
            if pod is None or (phase in _ENDED and _ended_seconds_ago(pod, now) > PATIENCE_SECONDS):
                yield Finding(
                    "claim-finished-pod", f"claim {_full_name(claim)}",
                    f"is reserved by pod {user['name']}, which {f'has ended ({phase})' if pod else 'is gone'}",
                    "status.reservedFor beside GET pods",
                    "the resource claim controller of kube-controller-manager frees it: check its log if this persists",
                )  # fmt: skip


def check_starting_pods(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each pod that waits for devices or for their preparation."""
    claims = {(one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in _allocated(cluster)}
    for pod in cluster.of("pods"):
        spec, namespace = pod.get("spec") or {}, pod["metadata"].get("namespace")
        if _phase(pod) != "Pending" or not spec.get("resourceClaims"):
            continue
        subject = f"pod {namespace}/{pod['metadata']['name']}"
        if not spec.get("nodeName"):
            yield Finding(
                "claim-waits", subject, f"waits for devices{_quoted(scheduler_message(pod))}",
                "status.phase is Pending, spec.nodeName is not set",
                f"dra-driver explain pod {pod['metadata']['name']} -n {namespace} shows why",
            )  # fmt: skip
            continue
        names = [claims[key] for name in claim_names(pod) if (key := (namespace, name)) in claims]
        mine = [claim for claim in names if _devices_of(claim, cluster.driver)]
        waited = seconds_since(str(condition_of(pod, "PodScheduled").get("lastTransitionTime") or ""), now)
        if mine and not is_prepared(pod) and waited > PATIENCE_SECONDS:
            listed = ", ".join(_full_name(claim) for claim in mine)
            yield Finding(
                "claim-not-prepared", subject,
                f"has been on {spec['nodeName']} for {waited:.0f} s; it uses {listed}{_quoted(_event(cluster, pod))}",
                "status.phase is Pending, its claims are allocated",
                "docs/error-codes.md explains the error code; `dra-driver doctor` on that node shows more",
            )  # fmt: skip


def check_devices(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each claim that holds a device that is not published."""
    if not cluster.has("slices", "claims"):
        return
    published = {
        (slice_["spec"]["pool"]["name"], device["name"])
        for slice_ in cluster.of("slices")
        if slice_["spec"].get("driver") == cluster.driver
        for device in slice_["spec"].get("devices") or ()
    }
    pools = {pool for pool, _ in published}
    for claim in _allocated(cluster):
        held = _devices_of(claim, cluster.driver)
        gone = [name for name in held if name not in published and name[0] in pools]
        for pool in dict.fromkeys(pool for pool, _ in held if pool not in pools):
            yield _pool_gone(claim, pool, [device for other, device in held if other == pool])
        if gone:
            yield Finding(
                "claim-device-gone", f"claim {_full_name(claim)}",
                f"holds {', '.join('/'.join(name) for name in gone)}, which is not published",
                "status.allocation beside GET resourceslices",
                "the GPU may be lost, or published by a driver of another name; end the pod if it does not come back",
            )  # fmt: skip


def _pool_gone(claim: ClaimWire, pool: str, devices: list[str]) -> Finding:
    node = pool.partition("/")[0]
    return Finding(
        "claim-pool-gone", f"claim {_full_name(claim)}",
        f"holds {', '.join(devices)} of pool {pool}, of which no device is published any more",
        "status.allocation beside GET resourceslices",
        f"check that node {node} exists and that the agent runs there; its running pods are not affected",
    )  # fmt: skip


def check_ledger(cluster: ClusterEvidence, node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding for each claim that is prepared on this node but does not exist in the cluster."""
    if node.rows is None or not cluster.has("claims"):
        return
    known = {claim["metadata"].get("uid") for claim in cluster.of("claims")}
    for row in node.rows:
        if row.uid not in known:
            yield Finding(
                "claim-gone", f"claim {row.name}", f"is gone, but {', '.join(row.devices) or 'it'} is still prepared",
                "the ledger beside GET resourceclaims",
                "the agent unprepares it once the claim has been gone for 5 minutes and nothing runs on it",
            )  # fmt: skip


def _allocated(cluster: ClusterEvidence) -> list[ClaimWire]:
    return [claim for claim in cluster.of("claims") if (claim.get("status") or {}).get("allocation")]


def _devices_of(claim: ClaimWire, driver: str) -> list[tuple[str, str]]:
    """Return pool and name of each device of one driver that a claim holds."""
    results = (claim["status"]["allocation"].get("devices") or {}).get("results") or ()
    return [(result["pool"], result["device"]) for result in results if result.get("driver") == driver]


def _ended_seconds_ago(pod: Wire, now: datetime) -> float:
    """Return how many seconds ago a pod's last container ended; infinity if no end is recorded."""
    states = [(one.get("state") or {}).get("terminated") or {} for one in pod["status"].get("containerStatuses") or ()]
    ends = [str(state["finishedAt"]) for state in states if state.get("finishedAt")]
    return seconds_since(max(ends), now) if ends else float("inf")


def _event(cluster: ClusterEvidence, pod: Wire) -> str:
    """Return the message of the kubelet's last event about preparing a pod's claims; "" if there is none."""
    uid = pod["metadata"].get("uid")
    mine = [event for event in cluster.of("events") if (event.get("involvedObject") or {}).get("uid") == uid]
    last = max(mine, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""), default={})
    return str(last.get("message") or "")


def _quoted(message: str) -> str:
    return f": {quoted(message)}" if message.strip() else ""


def _phase(pod: Wire) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _full_name(wire: Wire) -> str:
    return f"{wire['metadata'].get('namespace')}/{wire['metadata']['name']}"
