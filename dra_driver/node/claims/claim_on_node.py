"""ClaimOnNode: an allocated claim, joined once with the devices of this node for all planning functions.

In: the claim, the inventory, and how CDI devices are named. Out: each result with the device behind it and the configs
that apply to it: claim beats class, later beats earlier. Pure.
Source: KEP-4381 (configs and their order), KEP-5075 (shares).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import GPU_LOST, ClaimError, PrepareError, Retry
from dra_driver.base.machine import boot_id_file, read_boot_id
from dra_driver.base.names import gpu_name, pool_name, replicated_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceType, Share, ShareMode
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice, ConfigEntry
from dra_driver.node.claims.config import refuse
from dra_driver.node.claims.device_config import ConfigFault, DeviceConfig, IommuSettings
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory


class CdiNames(Protocol):
    """The names of CDI files, their kind and devices; supplied by the plugin, which may import the `cdi` room."""

    @property
    def kind(self) -> str:
        """The kind of all devices that this driver prepares."""

    def file(self, uid: str) -> str:
        """Return the name of a claim's file."""

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the name of a device within that file."""

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Return the fully qualified id of that device."""


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """One result of a claim, and the device of this node behind it.

    `configs` are those that apply, of which the last one wins. `in_file` is its name in the claim's CDI file.
    """

    result: AllocatedDevice
    device: Device
    configs: tuple[ConfigEntry, ...]
    in_file: str

    @property
    def config(self) -> DeviceConfig | None:
        """The config that wins, None if none applies."""
        return self.configs[-1].config if self.configs else None

    @property
    def iommu(self) -> IommuSettings:
        """How a virtual machine gets the device; without a config, as the vendor's own driver would pass it.

        Source: NVIDIA's DRA driver, VfioDeviceConfig: the legacy backend, without the API device; AMD's and Intel's
        drivers always pass the API device.
        """
        facts = self.device.gpu.passthrough
        of_config = self.config.iommu if self.config is not None else None
        return of_config or IommuSettings(has_api_device=facts is not None and facts.has_api_device)

    @property
    def is_shared(self) -> bool:
        """Whether other claims may have shares of the device too."""
        return self.device.share is not None or self.result.share_id is not None

    @property
    def is_made(self) -> bool:
        """Whether Prepare makes the device: a placement or a GPU for a virtual machine. Admin access never makes one.

        Its nodes are known only once that step has been carried out.
        """
        return not self.result.is_admin and (self.device.placement is not None or self.device.type is DeviceType.VFIO)


@dataclass(frozen=True, slots=True)
class ClaimOnNode:
    """An allocated claim with its results, each once, in their order."""

    claim: AllocatedClaim
    results: tuple[ClaimedDevice, ...]

    @property
    def own(self) -> tuple[Device, ...]:
        """The devices that the claim owns, each once, without those to which it has admin access."""
        return tuple({one.device.name: one.device for one in self.results if not one.result.is_admin}.values())

    @property
    def made(self) -> frozenset[str]:
        """The names of the devices that Prepare makes."""
        return frozenset(one.device.name for one in self.results if one.is_made)

    def refuse(self, faults: Collection[ConfigFault]) -> None:
        """Refuse the claim for these faults, if there are any. Raises: ClaimError, as `reading.refuse`."""
        if faults:
            refuse(faults, f"claim {self.claim.namespace}/{self.claim.name}")


def join_claim(claim: AllocatedClaim, devices: Mapping[str, Device], names: CdiNames) -> ClaimOnNode:
    """Join a claim with its devices, which are given by name (see `devices_of`).

    Raises: ClaimError("claim.bad-config") if a config names a request whose device is of another type.
    """
    faults: list[ConfigFault] = []
    results = []
    for result in dict.fromkeys(claim.devices):
        device, undivided = devices[result.device], devices[result.device].type.undivided
        meant = [entry for entry in claim.configs if not entry.requests or entry.names(result)]
        for entry in meant:
            if entry.requests and entry.config.device_type is not undivided:
                message = f"{entry.config.kind} does not go with {result.device}, which is of type {device.type}"
                faults.append(fault_of(result, message))
        applying = tuple(entry for entry in meant if entry.config.device_type is undivided)
        in_file = names.device(claim.uid, result.device, result.share_id)
        results.append(ClaimedDevice(result, device, applying, in_file))
    joined = ClaimOnNode(claim, tuple(results))
    joined.refuse(faults)
    return joined


def fault_of(result: AllocatedDevice, message: str) -> ConfigFault:
    """Return a fault in the config for a result's request."""
    return ConfigFault(f"config for request {result.request}", message)


def devices_of(claim: AllocatedClaim, inventory: Inventory, pool: str) -> dict[str, Device]:
    """Return the claim's devices in the inventory of the node with this pool, by name.

    Raises: ClaimError("claim.other-pool"); and, with retry LATER, ("claim.hardware-waiting") while the hardware does
    not answer at all, ("claim.device-unknown") naming every device that this node does not have now, ("claim.gpu-lost")
    where its GPU is lost.
    """
    _refuse_other_pools(claim, pool)
    found = {d.device: _find(inventory, d) for d in claim.devices}
    missing = sorted(name for name, device in found.items() if device is None)
    if not missing:
        return {name: device for name, device in found.items() if device is not None}
    if inventory.waiting_for:
        raise ClaimError(
            "hardware-waiting",
            f"claim {claim.namespace}/{claim.name} waits for {inventory.waiting_for}",
            retry=Retry.LATER,
        )
    refuse_lost(claim, _on_lost_gpus(inventory, missing))
    raise ClaimError(
        "device-unknown",
        f"claim {claim.namespace}/{claim.name} was allocated {', '.join(missing)}, which this node does not have now",
        hint="a GPU may have been lost or re-partitioned; `dra-driver devices` shows what is there",
        retry=Retry.LATER,
    )


def _refuse_other_pools(claim: AllocatedClaim, pool: str) -> None:
    foreign = sorted({device.pool for device in claim.devices} - {pool})
    if foreign:
        raise ClaimError(
            "other-pool",
            f"claim {claim.namespace}/{claim.name} has devices of pool {', '.join(foreign)}, "
            f"but this node's pool is {pool}",
            hint="another driver's slices were used; delete the pod and this claim so that another is allocated",
        )


def refuse_lost(claim: AllocatedClaim, names: Collection[str]) -> None:
    """Refuse to prepare a claim with these devices of lost GPUs, if there are any. Raises: ClaimError."""
    if not names:
        return
    full_name = f"{claim.namespace}/{claim.name}"
    raise ClaimError(
        "gpu-lost",
        f"claim {full_name} was allocated {', '.join(names)}, whose GPU is lost",
        hint=f"delete the pods that use claim {full_name}: the allocation lasts for as long as they exist, and only "
        "the pods that replace them are scheduled again",
        retry=Retry.LATER,
    )


def lost_devices(inventory: Inventory, names: Collection[str]) -> list[str]:
    """Return those of the devices whose GPU is lost, whether or not it is still in the inventory."""
    found = {name: inventory.find(name, None) for name in names}
    missing = [name for name, device in found.items() if device is None]
    lost = {name for name, device in found.items() if device is not None and device.gpu.is_lost}
    return sorted(lost.union(_on_lost_gpus(inventory, missing)))


def _on_lost_gpus(inventory: Inventory, names: Collection[str]) -> list[str]:
    """Return those of the devices whose GPU was there before and no longer answers."""
    gpus = tuple(gpu_name(problem.subject) for problem in inventory.problems if problem.code == GPU_LOST)
    return [name for name in names if any(name == gpu or name.startswith(f"{gpu}-") for gpu in gpus)]


def _find(inventory: Inventory, result: AllocatedDevice) -> Device | None:
    """Find an allocated device; for a replica that is no longer configured, find at least the device behind it."""
    device = inventory.find(result.device, result.share_id)
    parent = replicated_name(result.device)
    if device is not None or parent is None:
        return device
    whole = inventory.find(parent, None)
    if whole is None or whole.share is not None:
        return None
    share = Share(parent, ShareMode.REPLICAS, int(result.device.rpartition("-")[2]))
    return Device(result.device, DeviceType(f"{whole.type}-share"), {}, {}, whole.gpu, whole.partition, share=share)


# Deadline: a point in monotonic time by which a call has to be answered.

KUBELET_SECONDS = 45.0  # the deadline of each NodePrepareResources and NodeUnprepareResources
BUDGET_SECONDS = 40.0  # how much of it a call may use
HOLDER_SECONDS = 35.0  # how long a Prepare waits for a device that another claim holds
NODE_SECONDS = 2.0  # how long for a device node: udev makes it within milliseconds, after the driver or a partition


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time, in seconds.

    A call that `goes_first` is served before others, which wait for it. `is_wanted` returns whether the caller still
    waits for the answer.
    """

    at: float
    goes_first: bool = False
    is_wanted: Callable[[], bool] = _always

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    @classmethod
    def of_call(
        cls,
        time_remaining_s: float | None,
        *,
        goes_first: bool = False,
        is_wanted: Callable[[], bool] = _always,
    ) -> Deadline:
        """Return the deadline of a gRPC call: its budget, less a margin for the answer to travel back."""
        if time_remaining_s is None or time_remaining_s > KUBELET_SECONDS:
            time_remaining_s = KUBELET_SECONDS
        margin = min(2.0, time_remaining_s / 5)
        return cls(time.monotonic() + min(BUDGET_SECONDS, time_remaining_s - margin), goes_first, is_wanted)

    def remaining(self) -> float:
        """Return the seconds that are left; 0 once the deadline has passed."""
        return max(0.0, self.at - time.monotonic())

    def has_passed(self) -> bool:
        """Return whether no time is left."""
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds), self.goes_first, self.is_wanted)

    def require_caller(self) -> None:
        """Refuse to begin what nobody waits for any more.

        A call that had to wait may run after the kubelet has given up, asked again and been answered. Called under the
        locks, before the first effect. Raises: PrepareError("prepare.given-up").
        """
        if not self.is_wanted():
            raise PrepareError(
                "given-up",
                "the kubelet gave up this call before its turn came; nothing was changed",
                hint="the kubelet asks again",
                retry=Retry.LATER,
            )


# Node identity: the driver and pool that this process serves, and the boot in which it runs.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The driver's name, the pool of this node, and the id of the current boot."""

    driver: str
    pool: str
    boot_id: str


def this_node(node: str, driver: str, proc_root: str | Path) -> NodeIdentity:
    """Return the identity of this node; without a readable boot id, log that and leave it empty.

    The boot id shows whether the effects of prepared claims can still be there.
    """
    try:
        boot_id = read_boot_id(proc_root)
    except OSError as exc:
        boot_id = ""
        keys = fields(file=str(boot_id_file(proc_root)), err=str(exc))
        log.warning("boot id can't be read: a reboot won't be noticed", extra=keys)
    return NodeIdentity(driver, pool_name(node, driver), boot_id)
