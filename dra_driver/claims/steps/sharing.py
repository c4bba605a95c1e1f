"""How a claim's devices are shared: the claim on this node comes in, `SharingStep`s go out. Pure.

What each result requests is found in `requested_sharing`, and what is wrong with it in `sharing_faults`; everything
that is wrong is reported together. Whether another claim agrees is not decided here, but when the step is carried out.
Source: KEP-5075 (consumed capacity); NVIDIA, "Multi-Process Service".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dra_driver.claims.allocated.claim_on_node import ClaimOnNode
from dra_driver.claims.config.device_config import ConfigFault
from dra_driver.claims.steps.requested_sharing import RequestedSharing, requested_sharing_of
from dra_driver.claims.steps.sharing_faults import faults_of_combination, faults_of_request
from dra_driver.model.shares import DeviceType
from dra_driver.model.sharing import ClientLimits, MpsSettings, SharedDevice, SharingSettings

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SharingStep:
    """Share one physical device according to its settings; undone when the last claim that holds it is unprepared.

    `in_file` are the names in the CDI file of the claim's shares of the device, `clients` the limits of those that are
    MPS clients. `made` names the device whose partition an earlier step creates: its UUID is not known before that.
    `tenant` is the namespace to which the device is offered; it is not recorded, because a claim that holds a share
    keeps it.
    """

    kind: ClassVar[str] = "sharing"

    device: SharedDevice
    settings: SharingSettings
    in_file: tuple[str, ...] = ()
    clients: Mapping[str, ClientLimits] = field(default_factory=dict)
    made: str = ""
    tenant: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """The name of what the step changes, unique within its kind."""
        return self.device.name


def plan_sharing(on_node: ClaimOnNode) -> tuple[SharingStep, ...]:
    """Return a step for each physical device that is to be shared.

    Raises: ClaimError("claim.bad-config") with everything that is wrong.
    """
    by_device: dict[str, list[RequestedSharing]] = {}
    faults: list[ConfigFault] = []
    for one in on_node.results:
        if one.result.is_admin or not (one.is_shared or one.configs):
            continue
        requested = requested_sharing_of(one, on_node)
        faults += faults_of_request(requested)
        if requested.settings is not None:
            by_device.setdefault(one.device.shared_name, []).append(requested)
    if not (by_device or faults):
        return ()
    faults += faults_of_combination(by_device)
    on_node.refuse(faults)
    return tuple(_step(group) for group in by_device.values() if _has_effect(group[0]))


def _has_effect(requested: RequestedSharing) -> bool:
    """Return whether there is anything to set: MIG devices have no time slices of their own."""
    is_gpu = requested.claimed.device.type.undivided is DeviceType.GPU
    return is_gpu or isinstance(requested.settings, MpsSettings)


def _step(group: Sequence[RequestedSharing]) -> SharingStep:
    device, settings = group[0].claimed.device, group[0].settings
    assert settings is not None  # noqa: S101 - only requests with settings are in a group
    is_made = device.placement is not None
    shared = SharedDevice(
        name=device.shared_name,
        gpu_uuid=device.gpu.uuid,
        minor=device.gpu.minor,
        pci_address=device.gpu.pci_address,
        mig_uuid=device.partition.uuid if device.partition and not is_made else None,
    )
    clients: dict[str, ClientLimits] = {}
    if isinstance(settings, MpsSettings):
        clients = {one.claimed.in_file: _together(group, one, settings) for one in group}
    names = tuple(one.claimed.in_file for one in group)
    tenant = device.share.tenant if device.share else ""
    return SharingStep(shared, settings, names, clients, made=device.name if is_made else "", tenant=tenant)


def _together(group: Sequence[RequestedSharing], requested: RequestedSharing, settings: MpsSettings) -> ClientLimits:
    """Add up the shares of one request: its user gets all of them, with one limit for the device."""
    request = requested.claimed.result.base_request
    limits = [other.limits for other in group if other.claimed.result.base_request == request]
    threads = _sum([one.active_thread_percentage for one in limits], settings.active_thread_percentage or 100)
    memory = _sum([one.pinned_memory_limit for one in limits], settings.pinned_memory_limit)
    return ClientLimits(threads, memory and memory // _MIB * _MIB)


def _sum(limits: Sequence[int | None], maximum: int | None) -> int | None:
    if not limits or any(limit is None for limit in limits):
        return None
    total = sum(limit for limit in limits if limit is not None)
    return total if maximum is None else min(total, maximum)
