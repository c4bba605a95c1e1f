"""A whole plugin over simulated GPUs that are shared: modes and daemons are kept in files and outlive the agent.

GPU 0 is offered as replicas as well, GPU 1 also as a device that may be allocated many times: a claim names what it
was allocated, as if the scheduler had chosen it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_driver.base.errors import Retry, SharingError
from dra_driver.base.wire import DeviceType, MpsSettings, Share, SharedDevice, ShareMode, SharingSettings, Tenants
from dra_driver.node.devices.describing import Device, RequestPolicy
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.mps.client import MpsChannel, RunningDaemon, UnusedDevice
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig
from tests.support.plugin.parts import claim_wire, config, result

GIB = 1 << 30
BOTH_MODES = ("DEFAULT", "DEFAULT")


def replica(index: int) -> str:
    return f"{WHOLE}-share-{index}"


def time_slicing(interval: str, **more: Any) -> dict[str, Any]:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return config("GpuConfig", sharing=sharing, **more)


def mps(kind: str = "GpuConfig", source: str = "FromClaim", **settings: Any) -> dict[str, Any]:
    return config(kind, source=source, sharing={"strategy": "MPS", "mpsConfig": settings})


class FakeSupervisor:
    """Stands in for the supervisor: daemons in a file, by device name. `refusal` makes every start fail.

    `before_end` is called before the daemon of an unused device is ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_there = True
        self.refusal = ""
        self.calls: list[str] = []
        self.before_end: Callable[[], object] = lambda: None

    def start(self, device: SharedDevice, settings: MpsSettings, *, deadline_s: float) -> MpsChannel:
        self._require("start")
        assert deadline_s > 0
        if self.refusal:
            raise SharingError("mps-refused", self.refusal)
        self._write({**self.daemons(), device.name: device.uuid})
        return MpsChannel(f"/mps/{device.name}/pipe", f"/mps/{device.name}/shm")

    def stop(self, device: SharedDevice, *, deadline_s: float) -> None:
        self._require("stop")
        self._write({name: uuid for name, uuid in self.daemons().items() if name != device.name})

    def tidy(self, device: SharedDevice, *, deadline_s: float) -> None:
        self._require("tidy")

    def running(self, *, deadline_s: float) -> tuple[RunningDaemon, ...]:
        self._require("running")
        return tuple(RunningDaemon(name, uuid, MpsSettings(), True) for name, uuid in self.daemons().items())

    def stop_unused(self, unused: UnusedDevice, *, deadline_s: float) -> tuple[str, ...]:
        ended: list[str] = []
        for name, uuid in self.daemons().items():
            device = SharedDevice(name, uuid, 0, "")
            with unused(device) as is_unused:
                if is_unused:
                    self.before_end()
                    self.stop(device, deadline_s=deadline_s)
                    ended.append(name)
        return tuple(ended)

    def daemons(self) -> dict[str, str]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def _require(self, call: str) -> None:
        self.calls.append(call)
        if not self.is_there:
            raise SharingError("mps-unavailable", "no MPS supervisor", hint="run it", retry=Retry.LATER)

    def _write(self, daemons: dict[str, str]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(daemons))
        new.replace(self._path)


POD = "3ad3a3f5-4b5e-4f9b-9f5e-0d8a1c2b3e{:02d}"  # the UID of a pod, by number


class SharingRig(MigRig):
    """`settings` are the agent's configuration of shared devices; `is_hard` asks for memory limits."""

    def __init__(self, root: Path, settings: SharingSettings | None = None, *, is_hard: bool = False) -> None:
        self.settings, self.is_hard = settings, is_hard
        self.tenant, self.tenants = "", Tenants.ANY
        self.supervisor = FakeSupervisor(root / "daemons.json")
        self.sets: list[tuple[str, str]] = []
        super().__init__(root)

    def restart(self):
        preparer = super().restart()
        plain = self.hardware.set_time_slice

        def logged(device: SharedDevice, interval: Any, deadline_s: float) -> None:
            self.sets.append((device.name, str(interval)))
            plain(device, interval, deadline_s)

        self.hardware.set_time_slice = logged
        self.hardware.limit_memory = self._limit_memory
        return preparer

    def pod(self, number: int) -> str:
        """Return the UID of a pod that the kubelet has begun."""
        self.cgroup(number).mkdir(parents=True, exist_ok=True)
        return POD.format(number)

    def cgroup(self, number: int) -> Path:
        name = POD.format(number).replace("-", "_")
        parent = self.root / "cgroup/kubepods.slice/kubepods-besteffort.slice"
        return parent / f"kubepods-besteffort-pod{name}.slice"

    def limits(self) -> dict[str, dict[int, int]]:
        """Return the limits that are set: GiB by GPU and pod."""
        found: dict[str, dict[int, int]] = {}
        for key, limit in self._limits().items():
            device, cgroup = key.split(" ", 1)
            number = int(cgroup.removesuffix(".slice")[-2:])
            found.setdefault(device, {})[number] = limit // GIB
        return found

    def _limits(self) -> dict[str, int]:
        path = self.root / "limits.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def _limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        assert deadline_s > 0
        limits = {**self._limits(), f"{device.name} {cgroup}": limit}
        new = self.root / "limits.new"
        new.write_text(json.dumps({key: value for key, value in limits.items() if value is not None}))
        new.replace(self.root / "limits.json")

    def scan(self) -> None:
        super().scan()
        first, second = (self.gpu(i) for i in (0, 1))
        replicas = [
            Device(replica(i), DeviceType.GPU_SHARE, {}, {"memory": 20 * GIB}, first, share=self._share(WHOLE, i))
            for i in range(4)
        ]
        policies = {"memory": RequestPolicy(8 * GIB, GIB, 40 * GIB, GIB)}
        share = self._share(OTHER, None)
        many = Device(OTHER, DeviceType.GPU_SHARE, {}, {"memory": 80 * GIB}, second, share=share, policies=policies)
        self.inventory = Inventory(self.inventory.offering, hidden=(*replicas, many))

    def _share(self, parent: str, index: int | None) -> Share:
        mode = ShareMode.MEMORY if index is None else ShareMode.REPLICAS
        return Share(parent, mode, index, self.settings, self.is_hard, self.tenant, self.tenants)

    def allocate_share(self, uid: str, *share_ids: str, memory: str = "8Gi", **more: Any) -> str:
        """Allocate shares of the second GPU."""
        results = [result(OTHER, shareID=share, consumedCapacity={"memory": memory}) for share in share_ids]
        self.api.put(claim_wire(uid, *results, **more))
        return uid

    # What is on the node

    def intervals(self) -> tuple[str, ...]:
        return tuple(str(self.hardware.time_slice(self._shared(i), 1)) for i in (0, 1))

    def compute_modes(self) -> tuple[str, ...]:
        return tuple(str(self.hardware.compute_mode(self._shared(i), 1)) for i in (0, 1))

    def _shared(self, index: int) -> SharedDevice:
        gpu = self.gpu(index)
        return SharedDevice((WHOLE, OTHER)[index], gpu.uuid, gpu.minor, gpu.pci_address)

    def effects(self) -> dict[str, list[str]]:
        """Return the UIDs of the holders of each effect in the ledger."""
        rows = self.ledger._read("SELECT device, claim_uid FROM effect_holds ORDER BY claim_uid")
        names = self.ledger.effects.names()
        assert {row["device"] for row in rows} <= set(names)
        return {name: [row["claim_uid"] for row in rows if row["device"] == name] for name in names}

    def env_of(self, uid: str) -> dict[str, dict[str, str]]:
        """Return the variables of each device in a claim's CDI file."""
        document = json.loads(self.files()[self.file_of(uid)])
        return {
            device["name"]: dict(text.split("=", 1) for text in device["containerEdits"].get("env", ()))
            for device in document["devices"]
        }

    def assert_unshared(self) -> None:
        assert self.intervals() == ("Default", "Default")
        assert self.compute_modes() == BOTH_MODES
        assert self.supervisor.daemons() == {}
        assert self.limits() == {}
        assert self.effects() == {}
        self.assert_empty()
