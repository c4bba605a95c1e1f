"""PreparePlan: which steps make a claim's devices usable, in order, each with what it takes to undo it.

Enters: the claim, the inventory, and the edits that the hardware gave for each device. Leaves: a plan, without any
effect. The same UID, allocation and hardware give the same plan, the same CDI ids and the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.claims.config import DeviceConfig, Fault, refuse
from dra_driver.inventory.device import Device, Inventory
from dra_driver.model.edits import Edits
from dra_driver.model.errors import ClaimError, Retry
from dra_driver.model.wire import Wire


class CdiNames(Protocol):
    """How CDI files, their kind and their devices are named; given by the plugin, which knows the `cdi` room."""

    @property
    def kind(self) -> str:
        """Give the kind of all devices that this driver prepares."""

    def file(self, uid: str) -> str:
        """Name the file of a claim."""

    def device(self, uid: str, device: str, share_id: str | None) -> str:
        """Name a device within that file."""

    def id(self, uid: str, device: str, share_id: str | None) -> str:
        """Give the fully qualified id of that device."""


@dataclass(frozen=True, slots=True)
class CdiFileStep:
    """Write one CDI file; undone by removing it."""

    kind: ClassVar[str] = "cdi-file"

    file: str
    cdi_kind: str
    devices: Mapping[str, Edits]
    common: Edits

    def record(self) -> Wire:
        """Give all that undoing this step needs, for the ledger."""
        return {"kind": self.kind, "file": self.file}


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """What the kubelet is told about one result."""

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """Steps in order (undone in reverse), and what the kubelet is told once they are done."""

    claim: AllocatedClaim
    devices: tuple[PreparedDevice, ...]
    steps: tuple[CdiFileStep, ...]


def devices_of(claim: AllocatedClaim, inventory: Inventory) -> dict[str, Device]:
    """Find the claim's devices in the inventory, by name.

    Raises: ClaimError("claim.hardware-waiting") while the hardware does not answer at all, or ("claim.device-unknown")
    naming every device that this node does not have now; both retry LATER.
    """
    missing = sorted({d.device for d in claim.devices} - inventory.by_name.keys())
    if not missing:
        return {d.device: inventory.by_name[d.device] for d in claim.devices}
    if inventory.waiting_for:
        raise ClaimError(
            "hardware-waiting",
            f"claim {claim.namespace}/{claim.name} waits for {inventory.waiting_for}",
            retry=Retry.LATER,
        )
    raise ClaimError(
        "device-unknown",
        f"claim {claim.namespace}/{claim.name} was allocated {', '.join(missing)}, which this node does not have now",
        hint="a GPU may have been lost or re-partitioned; `dra-driver devices` shows what is there",
        retry=Retry.LATER,
    )


def plan_prepare(
    claim: AllocatedClaim, devices: Mapping[str, Device], edits: Mapping[str, Edits], common: Edits, names: CdiNames
) -> PreparePlan:
    """Plan one claim. `devices` and `edits` hold each of the claim's devices by name, `common` what all of them need.

    Raises: ClaimError("claim.bad-config") when a config names a request whose device is of another type.
    """
    choose_configs(claim, devices)
    step = CdiFileStep(
        file=names.file(claim.uid),
        cdi_kind=names.kind,
        devices={names.device(claim.uid, d.device, d.share_id): edits[d.device] for d in claim.devices},
        common=common,
    )
    prepared = tuple(
        PreparedDevice(
            request=d.base_request,
            pool=d.pool,
            device=d.device,
            cdi_ids=(names.id(claim.uid, d.device, d.share_id),),
            share_id=d.share_id,
        )
        for d in claim.devices
    )
    return PreparePlan(claim, prepared, (step,))


def choose_configs(claim: AllocatedClaim, devices: Mapping[str, Device]) -> dict[AllocatedDevice, DeviceConfig | None]:
    """Choose the config of each result: claim beats class, later beats earlier, None where no config applies.

    Raises: ClaimError("claim.bad-config") when a config names a request whose device is of another type.
    """
    chosen: dict[AllocatedDevice, DeviceConfig | None] = {}
    faults: list[Fault] = []
    for result in claim.devices:
        chosen[result] = None
        found = devices[result.device].type
        for entry in claim.configs:
            is_named = entry.names(result)
            if entry.requests and not is_named:
                continue
            if entry.config.device_type is found:
                chosen[result] = entry.config
            elif is_named:
                message = f"{entry.config.kind} does not go with {result.device}, which is of type {found}"
                faults.append(Fault(f"config for request {result.request}", message))
    refuse(faults, f"claim {claim.namespace}/{claim.name}")
    return chosen
