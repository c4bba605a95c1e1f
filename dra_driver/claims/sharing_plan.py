"""How a claim's devices are shared: its configs and the inventory come in, `SharingStep`s go out. Pure.

On a device of its own the claim decides: claim beats class, later beats earlier. On a device shared with other claims,
class and agent decide, and the claim may only lower a limit for its own clients. Everything that is wrong is reported
together. Whether another claim agrees is not decided here, but when the step is carried out.
Source: KEP-4381 (configs and their order), KEP-5075 (consumed capacity); NVIDIA, "Multi-Process Service".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dra_driver.claims.allocated import AllocatedClaim, AllocatedDevice, ConfigEntry
from dra_driver.claims.config import refuse
from dra_driver.claims.device_config import ConfigFault, DeviceConfig
from dra_driver.claims.requested_sharing import RequestedSharing, fault_of
from dra_driver.claims.sharing_faults import (
    capability_faults,
    disagreements,
    not_kept_to_namespace,
    raised_limits,
    several_mps_devices,
    unknown_devices,
)
from dra_driver.inventory.device import Device
from dra_driver.model.quantity import Quantity
from dra_driver.model.shares import DeviceType
from dra_driver.model.sharing import ClientLimits, MpsSettings, SharedDevice, SharingSettings

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SharingStep:
    """Share one physical device according to its settings; undone when the last claim that holds it goes.

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


def choose_configs(claim: AllocatedClaim, devices: Mapping[str, Device]) -> dict[AllocatedDevice, DeviceConfig | None]:
    """Return the config of each result, or None if none applies: claim beats class, later beats earlier.

    Raises: ClaimError("claim.bad-config") if a config names a request whose device is of another type.
    """
    applying = _applying(claim, devices)
    return {result: entries[-1].config if entries else None for result, entries in applying.items()}


def plan_sharing(
    claim: AllocatedClaim, devices: Mapping[str, Device], in_file: Mapping[AllocatedDevice, str]
) -> tuple[SharingStep, ...]:
    """Return a step for each physical device that is to be shared. `in_file` maps results to names in the CDI file.

    Raises: ClaimError("claim.bad-config") with everything that is wrong.
    """
    applying = _applying(claim, devices)
    faults: list[ConfigFault] = []
    by_device: dict[str, list[RequestedSharing]] = {}
    for result, entries in applying.items():
        if result.is_admin:
            continue
        device = devices[result.device]
        is_shared = device.share is not None or result.share_id is not None
        if not is_shared and not entries:
            continue
        requested = (
            _of_shared(result, device, entries) if is_shared else _of_own(result, device, entries, applying, devices)
        )
        faults += requested.faults
        if requested.settings is not None:
            by_device.setdefault(device.shared_name, []).append(requested)
    faults += [fault for group in by_device.values() for fault in disagreements(group)]
    faults += several_mps_devices(by_device)
    refuse(faults, f"claim {claim.namespace}/{claim.name}")
    return tuple(_step(devices, group, in_file) for group in by_device.values() if _has_effect(devices, group[0]))


def _applying(claim: AllocatedClaim, devices: Mapping[str, Device]) -> dict[AllocatedDevice, tuple[ConfigEntry, ...]]:
    """Return the configs that apply to each result; the last one wins.

    Raises: ClaimError("claim.bad-config").
    """
    applying: dict[AllocatedDevice, tuple[ConfigEntry, ...]] = {}
    faults: list[ConfigFault] = []
    for result in claim.devices:
        found = devices[result.device].type
        meant = [entry for entry in claim.configs if not entry.requests or entry.names(result)]
        for entry in meant:
            if entry.requests and entry.config.device_type is not found.undivided:
                message = f"{entry.config.kind} does not go with {result.device}, which is of type {found}"
                faults.append(fault_of(result, message))
        applying[result] = tuple(entry for entry in meant if entry.config.device_type is found.undivided)
    refuse(faults, f"claim {claim.namespace}/{claim.name}")
    return applying


# A device of the claim's own.


def _of_own(
    result: AllocatedDevice,
    device: Device,
    entries: Sequence[ConfigEntry],
    applying: Mapping[AllocatedDevice, Sequence[ConfigEntry]],
    devices: Mapping[str, Device],
) -> RequestedSharing:
    """Take the settings of the winning config; its limits by device refer to the devices for which it wins."""
    settings = entries[-1].config.settings if entries else None
    if not isinstance(settings, MpsSettings):
        return RequestedSharing(result, settings)
    won = {r.device for r, other in applying.items() if other and other[-1] is entries[-1] and not r.is_admin}
    uuids = sorted((_uuid_if_made(devices[name]), name) for name in won)
    faults = () if entries[-1].is_class else tuple(unknown_devices(result, settings, uuids))
    settings = _for_device(settings, device, uuids.index((_uuid_if_made(device), device.name)))
    return RequestedSharing(result, settings, faults=(*faults, *capability_faults(result, device, settings)))


def _for_device(settings: MpsSettings, device: Device, index: int) -> MpsSettings:
    """Reduce limits by device to the limit of this device."""
    by_device = settings.per_device_limits
    limit = by_device.get(_uuid_if_made(device), by_device.get(str(index), settings.pinned_memory_limit))
    return replace(settings, pinned_memory_limit=limit, per_device_limits={})


def _uuid_if_made(device: Device) -> str:
    """Return the UUID by which CUDA finds the device; "" for a partition that Prepare is yet to make."""
    is_made = device.partition is not None or device.type.undivided is DeviceType.GPU
    return device.uuid if is_made else ""


# A device shared with other claims.


def _of_shared(result: AllocatedDevice, device: Device, entries: Sequence[ConfigEntry]) -> RequestedSharing:
    """Take the device's settings from class or agent, and let the claim lower limits for its own clients."""
    given = device.share.settings if device.share else None
    of_class = [entry.config.settings for entry in entries if entry.is_class]
    of_claim = [entry.config.settings for entry in entries if not entry.is_class]
    base = _completed(of_class[-1] if of_class else None, given)
    if isinstance(base, MpsSettings):
        base = _for_device(base, device, 0)
    requested = of_claim[-1] if of_claim else None
    if isinstance(requested, MpsSettings):
        requested = _for_device(requested, device, 0)
    faults = tuple(fault_of(result, text) for text in raised_limits(base, requested, device))
    if not isinstance(base, MpsSettings):
        return RequestedSharing(result, base, faults=faults)
    faults += tuple(capability_faults(result, device, base)) + tuple(not_kept_to_namespace(result, device))
    return RequestedSharing(
        result, base, _limits(result, requested if isinstance(requested, MpsSettings) else MpsSettings()), faults
    )


def _completed(of_class: SharingSettings | None, given: SharingSettings | None) -> SharingSettings | None:
    """Return the settings of the class; MPS settings that it leaves open come from the agent's configuration."""
    if not isinstance(of_class, MpsSettings) or not isinstance(given, MpsSettings):
        return of_class or given
    threads, memory = of_class.active_thread_percentage, of_class.pinned_memory_limit
    return replace(
        of_class,
        active_thread_percentage=given.active_thread_percentage if threads is None else threads,
        pinned_memory_limit=given.pinned_memory_limit if memory is None else memory,
        multi_user=of_class.multi_user or given.multi_user,
        across_namespaces=given.across_namespaces,
    )


def _limits(result: AllocatedDevice, requested: MpsSettings) -> ClientLimits:
    """Return the limits of one result's clients: its share, or less if the claim says so."""
    consumed = {name: int(Quantity.parse(amount).value) for name, amount in result.consumed}
    threads = [consumed.get("compute"), requested.active_thread_percentage]
    memory = [consumed.get("memory"), requested.pinned_memory_limit]
    return ClientLimits(_least(threads), _least(memory))


def _least(limits: Sequence[int | None]) -> int | None:
    """Return the lowest limit. 0 stands for a capacity that is published but not counted, so it limits nothing."""
    return min((limit for limit in limits if limit), default=None)


# Both kinds of devices.


def _has_effect(devices: Mapping[str, Device], requested: RequestedSharing) -> bool:
    """Return whether there is anything to set: MIG devices have no time slices of their own."""
    is_gpu = devices[requested.result.device].type.undivided is DeviceType.GPU
    return is_gpu or isinstance(requested.settings, MpsSettings)


def _step(
    devices: Mapping[str, Device], group: Sequence[RequestedSharing], in_file: Mapping[AllocatedDevice, str]
) -> SharingStep:
    device = devices[group[0].result.device]
    settings = group[0].settings
    assert settings is not None  # noqa: S101 - only requests with settings are in a group
    is_made = device.cut is not None
    shared = SharedDevice(
        name=device.shared_name,
        gpu_uuid=device.gpu.uuid,
        minor=device.gpu.minor,
        pci_address=device.gpu.pci_address,
        mig_uuid=device.partition.uuid if device.partition and not is_made else None,
    )
    clients: dict[str, ClientLimits] = {}
    if isinstance(settings, MpsSettings):
        clients = {in_file[requested.result]: _together(group, requested, settings) for requested in group}
    names = tuple(in_file[requested.result] for requested in group)
    tenant = device.share.tenant if device.share else ""
    return SharingStep(shared, settings, names, clients, made=device.name if is_made else "", tenant=tenant)


def _together(group: Sequence[RequestedSharing], requested: RequestedSharing, settings: MpsSettings) -> ClientLimits:
    """Add up the shares of one request: its user gets all of them, with one limit for the device."""
    limits = [other.limits for other in group if other.result.base_request == requested.result.base_request]
    threads = _sum([one.active_thread_percentage for one in limits], settings.active_thread_percentage or 100)
    memory = _sum([one.pinned_memory_limit for one in limits], settings.pinned_memory_limit)
    return ClientLimits(threads, memory and memory // _MIB * _MIB)


def _sum(limits: Sequence[int | None], most: int | None) -> int | None:
    if not limits or any(limit is None for limit in limits):
        return None
    total = sum(limit for limit in limits if limit is not None)
    return total if most is None else min(total, most)
