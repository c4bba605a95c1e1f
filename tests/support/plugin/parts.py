"""Stand-ins for the rooms beside the plugin, and a whole plugin on real files under one folder.

FakeApi replaces kube, FakeHardware a vendor; ledger, locks and CDI store are the real ones.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from dra_driver.base.errors import ApiError, HardwareError, Retry
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.facts import DeviceNode, Edits, PartitionFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.cdi import CdiStore
from dra_driver.node.claims.allocated import AllocatedClaim, decode_claim
from dra_driver.node.claims.metadata import DeviceMetadata
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, NodeIdentity, Offering
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.locks import NodeLocks, ValidationLock
from dra_driver.node.neighbours.gone_claims import GoneClaims
from dra_driver.node.prepare.composition import ClaimContext, NodeFolders, compose
from dra_driver.node.prepare.preparer import Preparer
from dra_driver.node.prepare.repair import CdiClaimFiles
from dra_driver.node.prepare.steps.passthrough import PassthroughServices

DRIVER = "gpu.nvidia.com"
POOL = f"n1/{DRIVER}"


def result(device: str, request: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": DRIVER, "pool": POOL, "device": device, **more}


def config(kind: str = "GpuConfig", source: str = "FromClaim", requests: tuple[str, ...] = (), **fields: Any) -> dict:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def claim_wire(
    uid: str, *results: dict[str, Any], configs: tuple[dict, ...] = (), name: str = "", pods: tuple[str, ...] = ()
) -> dict[str, Any]:
    status: dict[str, Any] = {"allocation": {"devices": {"results": list(results), "config": list(configs)}}}
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": f"pod-{pod}", "uid": pod} for pod in pods]
    return {"metadata": {"namespace": "ns", "name": name or f"claim-{uid}", "uid": uid}, "status": status}


def allocated(uid: str, *devices: str, **more: Any) -> AllocatedClaim:
    return decode_claim(claim_wire(uid, *(result(d, **more) for d in devices)), driver=DRIVER, uid=uid)


def gpu(index: int) -> NvidiaGpu:
    return NvidiaGpu(uuid=f"GPU-{index}", pci_address=f"0000:{index:02x}:00.0", minor=index, memory_bytes=1 << 30)


def inventory(count: int = 4, partitions: int = 2) -> Inventory:
    """Return `count` whole GPUs gpu-0 …, and partitions mig-0 … of one more."""
    devices = [Device(f"gpu-{i}", DeviceType.GPU, {}, {}, gpu(i)) for i in range(count)]
    for i in range(partitions):
        facts = PartitionFacts(f"MIG-{i}", "1g.10gb", 19, i, 0, i, 1, 1 << 30, 16, 1, 1, 0, 1, 0)
        devices.append(Device(f"mig-{i}", DeviceType.MIG, {}, {}, gpu(count), facts))
    return Inventory(Offering(tuple(devices)))


class FakeApi:
    """Claims by namespace and name. `faults` are raised first, one a request."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.faults: list[ApiError] = []
        self.requests: Counter[str] = Counter()

    def put(self, wire: dict[str, Any]) -> dict[str, Any]:
        self.claims[wire["metadata"]["namespace"], wire["metadata"]["name"]] = wire
        return wire

    def delete(self, uid: str) -> None:
        self.claims = {key: c for key, c in self.claims.items() if c["metadata"]["uid"] != uid}

    def get_claim(self, namespace: str, name: str, *, timeout_s: float) -> dict[str, Any]:
        self.requests["get"] += 1
        if self.faults:
            raise self.faults.pop(0)
        if (namespace, name) not in self.claims:
            raise ApiError("not-found", f"claim {namespace}/{name}", status=404, retry=Retry.LATER)
        return self.claims[namespace, name]

    def find(self, uid: str) -> dict[str, Any] | None:
        """Answer as the kubelet's pods would, each of which has one of the claims."""
        self.requests["find"] += 1
        if self.faults:
            raise self.faults.pop(0)
        return next((c for c in self.claims.values() if c["metadata"]["uid"] == uid), None)


class FakeHardware:
    """Device nodes by minor; `major` changes as after a driver reload; `busy` holds minors with a process on them."""

    vendor = "fake"

    def __init__(self) -> None:
        self.major = 195
        self.missing: set[int] = set()
        self.busy: set[int] = set()

    def common_edits(self) -> Edits:
        return Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))

    def device_edits(self, facts: NvidiaGpu, partition: PartitionFacts | None) -> Edits:
        if facts.minor in self.missing:
            raise HardwareError("node-missing", f"/dev/nvidia{facts.minor} is not there", retry=Retry.LATER)
        return Edits(device_nodes=(DeviceNode(f"/dev/nvidia{facts.minor}", self.major, facts.minor),))

    def processes(self, facts: NvidiaGpu, partition: PartitionFacts | None) -> tuple[int, ...]:
        return (4711,) if facts.minor in self.busy else ()


class BlindHardware(FakeHardware):
    """Hardware that can't list processes."""

    processes = None  # type: ignore[assignment]


class Clock:
    """Seconds of boot time, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Rig:
    """One node: data folder, CDI folder, API, hardware. `restart` is a new agent on the same files."""

    supervisor: Any = None
    passthrough = PassthroughServices()
    has_metadata = False
    patience_s = 60.0  # how long a call may take on a busy machine
    driver = DRIVER

    def __init__(self, root: Path) -> None:
        self.root = root
        self.api, self.hardware, self.clock = FakeApi(), FakeHardware(), Clock()
        self.inventory = inventory()
        self.boot_id = "boot-1"
        self.data, self.cdi = root / "plugins" / self.driver, root / "cdi"
        (root / "proc/1").mkdir(parents=True, exist_ok=True)  # the host's first process, as with hostPID
        self.ledgers: list[Ledger] = []
        self.restart()

    @property
    def current(self) -> Inventory:
        """Return the newest inventory, as the agent's parts read it."""
        return self.inventory

    def restart(self) -> Preparer:
        self.store = CdiStore(self.cdi)
        files = CdiClaimFiles(self.store, self.driver)
        self.ledger = Ledger(self.data / "ledger.db", boot_id=self.boot_id, files=files)
        self.ledgers.append(self.ledger)
        self.locks = NodeLocks(self.data / "locks")
        node = NodeIdentity(self.driver, f"n1/{self.driver}", self.boot_id)
        work = compose(
            ClaimContext(
                node=node,
                api=self.api,
                ledger=self.ledger,
                store=self.store,
                locks=self.locks,
                hardware=self.hardware,
                inventory=self,
                gone=GoneClaims(
                    node,
                    self.api,
                    self.ledger,
                    self.hardware,
                    self,
                    claims=self.api,
                    now=self.clock,
                ),
                folders=NodeFolders(self.root / "pods", self.root / "proc", self.root / "cgroup"),
                supervisor=self.supervisor,
                metadata=DeviceMetadata(self.cdi, self.driver),
                validation=ValidationLock(self.data),
                has_metadata=self.has_metadata,
                passthrough=self.passthrough,
            )
        )
        self.preparer, self.repair = work.preparer, work.repair
        return self.preparer

    def reboot(self) -> Preparer:
        """Start again in another boot: the CDI folder is a tmpfs and empty."""
        for path in self.cdi.iterdir():
            path.unlink()
        self.boot_id += "+"
        return self.restart()

    def close(self) -> None:
        self.preparer.close()
        for ledger in self.ledgers:
            ledger.close()

    def allocate(self, uid: str, *devices: str, **more: Any) -> str:
        results = (result(device, driver=self.driver, pool=f"n1/{self.driver}") for device in devices)
        self.api.put(claim_wire(uid, *results, **more))
        return uid

    def prepare(self, uid: str, seconds: float | None = None, preparer: Preparer | None = None):
        name = next((n for (_, n), c in self.api.claims.items() if c["metadata"]["uid"] == uid), f"claim-{uid}")
        return (preparer or self.preparer).prepare("ns", name, uid, Deadline.after(seconds or self.patience_s))

    def unprepare(self, uid: str) -> None:
        self.preparer.unprepare(uid, Deadline.after(self.patience_s))

    def files(self) -> dict[str, bytes]:
        """Return the files in the CDI folder, hidden ones too, without the records beside claims' files."""
        found = sorted(path for path in self.cdi.iterdir() if path.is_file()) if self.cdi.exists() else []
        names = {path.name for path in found}
        return {
            p.name: p.read_bytes()
            for p in found
            if p.name.removesuffix(".record").removeprefix(".") not in names - {p.name}
        }

    def file_of(self, uid: str) -> str:
        return f"k8s.{self.driver}-claim_{uid}.json"

    def states(self) -> dict[str, str]:
        return {r.uid: str(r.state) for r in self.ledger.records()}

    def holders(self) -> set[tuple[str, str]]:
        """Return the device and the claim's UID of every hold in the ledger."""
        return {(row["device"], row["claim_uid"]) for row in self.ledger._read("SELECT device, claim_uid FROM holds")}

    def assert_empty(self) -> None:
        assert self.files() == {}
        assert self.states() == {}
        assert self.holders() == set()


def in_thread(function: Any, *values: Any) -> tuple[threading.Thread, list[Any]]:
    """Run a function beside the test; its result, or its error, is in the list once the thread has ended."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function(*values))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def is_root() -> bool:
    return os.geteuid() == 0
