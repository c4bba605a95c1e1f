"""What each result of a claim requests of a device that is to be shared, and what can be wrong with that.

One function for each rule yields its faults.

Source: KEP-5075 (consumed capacity); NVIDIA, "Multi-Process Service" (compute capabilities, one daemon per container).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.base.quantity import Quantity
from dra_driver.base.wire import (
    ClientLimits,
    DeviceType,
    Interval,
    MpsSettings,
    SharingSettings,
    Tenants,
    TimeSlicingSettings,
    strategy_of,
)
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.claims.allocated import AllocatedDevice, ClaimedDevice, ClaimOnNode, fault_of
from dra_driver.node.claims.device_config import ConfigFault
from dra_driver.node.devices.describing import Device

# The sharing that one result of a claim requests for its device.


@dataclass(frozen=True, slots=True)
class RequestedSharing:
    """What one result requests: settings for its device, and limits of its own.

    `asked` are the settings in the config, unchanged; on a device shared with other claims, only those in a config of
    the claim itself. `uuids` are the UUIDs and names of the devices to which the limits by device in `asked` refer.
    """

    claimed: ClaimedDevice
    settings: SharingSettings | None = None
    limits: ClientLimits = field(default_factory=ClientLimits)
    asked: SharingSettings | None = None
    uuids: tuple[tuple[str, str], ...] = ()

    @property
    def has_effect(self) -> bool:
        """Whether there is anything to set: MIG devices have no time slices of their own."""
        return self.claimed.device.type.undivided is DeviceType.GPU or isinstance(self.settings, MpsSettings)


def requested_sharing_of(one: ClaimedDevice, on_node: ClaimOnNode) -> RequestedSharing:
    """Return what a result requests; its settings are None where its device is not to be shared."""
    return _of_shared(one) if one.is_shared else _of_own(one, on_node)


def _of_own(one: ClaimedDevice, on_node: ClaimOnNode) -> RequestedSharing:
    """Take the settings of the winning config; its limits by device refer to the devices for which it wins."""
    settings = one.config.settings if one.config else None
    if not isinstance(settings, MpsSettings):
        return RequestedSharing(one, settings)
    winner = one.configs[-1]
    won = {
        other.device.name: other.device
        for other in on_node.results
        if other.configs and other.configs[-1] is winner and not other.result.is_admin
    }
    uuids = sorted((_uuid_if_made(device), name) for name, device in won.items())
    index = uuids.index((_uuid_if_made(one.device), one.device.name))
    return RequestedSharing(one, _for_device(settings, one.device, index), asked=settings, uuids=tuple(uuids))


def _of_shared(one: ClaimedDevice) -> RequestedSharing:
    """Take the device's settings from class or agent, and let the claim lower limits for its own clients."""
    device = one.device
    given = device.share.settings if device.share else None
    of_class = [entry.config.settings for entry in one.configs if entry.is_class]
    of_claim = [entry.config.settings for entry in one.configs if not entry.is_class]
    base = _completed(of_class[-1] if of_class else None, given)
    asked = of_claim[-1] if of_claim else None
    if isinstance(asked, MpsSettings):
        asked = _for_device(asked, device, 0)
    if not isinstance(base, MpsSettings):
        return RequestedSharing(one, base, asked=asked)
    limits = _limits(one.result, asked if isinstance(asked, MpsSettings) else MpsSettings())
    return RequestedSharing(one, _for_device(base, device, 0), limits, asked)


def _for_device(settings: MpsSettings, device: Device, index: int) -> MpsSettings:
    by_device = settings.per_device_limits
    limit = by_device.get(_uuid_if_made(device), by_device.get(str(index), settings.pinned_memory_limit))
    return replace(settings, pinned_memory_limit=limit, per_device_limits={})


def _uuid_if_made(device: Device) -> str:
    """Return the UUID by which CUDA finds the device; "" for a partition that Prepare is yet to make."""
    is_made = device.partition is not None or device.type.undivided is DeviceType.GPU
    return device.uuid if is_made else ""


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
    """Return the limits of one result's clients: its share, or less if the claim requests less."""
    consumed = {name: int(Quantity.parse(amount).value) for name, amount in result.consumed}
    threads = [consumed.get("compute"), requested.active_thread_percentage]
    memory = [consumed.get("memory"), requested.pinned_memory_limit]
    return ClientLimits(_least(threads), _least(memory))


def _least(limits: Sequence[int | None]) -> int | None:
    """Return the lowest limit. 0 stands for a capacity that is published but not counted, so it limits nothing."""
    return min((limit for limit in limits if limit), default=None)


_MIB = 1 << 20
_KEPLER, _VOLTA = (3, 5), (7, 0)  # compute capabilities: for MPS at all, for its limits and several users


def faults_of_request(requested: RequestedSharing) -> Iterator[ConfigFault]:
    """Yield everything that is wrong with what one result requests."""
    one, settings = requested.claimed, requested.settings
    result, device = one.result, one.device
    if one.is_shared:
        yield from (fault_of(result, text) for text in _raised_limits(settings, requested.asked, device))
    elif isinstance(requested.asked, MpsSettings) and not one.configs[-1].is_class:
        yield from _unknown_devices(result, requested.asked, requested.uuids)
    if isinstance(settings, MpsSettings):
        if not isinstance(device.gpu, NvidiaGpu):
            yield fault_of(result, f"MPS is for NVIDIA's GPUs, and {device.shared_name} is not one of them")
            return
        yield from _capability_faults(result, device.gpu, device.shared_name, settings)
        if one.is_shared:
            yield from _not_kept_to_namespace(result, device)


def faults_of_combination(by_device: Mapping[str, Sequence[RequestedSharing]]) -> Iterator[ConfigFault]:
    """Yield everything that is wrong with the combination of a claim's requests, which are grouped by device."""
    for group in by_device.values():
        yield from _disagreements(group)
    yield from _several_mps_devices(by_device)


def _unknown_devices(
    result: AllocatedDevice, settings: MpsSettings, uuids: Sequence[tuple[str, str]]
) -> Iterator[ConfigFault]:
    """Yield a fault for each limit that names a device to which this config does not apply."""
    known = {*(uuid for uuid, _ in uuids), *map(str, range(len(uuids)))}
    for key in sorted(settings.per_device_limits.keys() - known):
        names = ", ".join(f"{index}: {uuid or name}" for index, (uuid, name) in enumerate(uuids))
        yield fault_of(result, f"mpsConfig.defaultPerDevicePinnedMemoryLimit[{key}] is none of its devices ({names})")


def _not_kept_to_namespace(result: AllocatedDevice, device: Device) -> Iterator[ConfigFault]:
    """Yield a fault if MPS must stay within one namespace but the device is not offered to a single one."""
    share = device.share
    if share is not None and share.tenants is Tenants.NAMESPACE and not share.tenant:
        message = f"{device.name} is not offered to one namespace, as MPS requires with mps.tenants=namespace"
        yield fault_of(result, f"{message}: set MPS by a rule of the sharing configuration, not by a device class")


def _raised_limits(base: SharingSettings | None, requested: SharingSettings | None, device: Device) -> Iterator[str]:
    """Yield each part of a claim's request that does more than lower a limit."""
    if requested is None or requested == TimeSlicingSettings() == (base or TimeSlicingSettings()):
        return
    shared = f"{device.name} is shared with other claims"
    if base is None:
        yield f"{shared}: its sharing is set by a device class or the agent's configuration, and neither sets any"
    elif strategy_of(requested) is not strategy_of(base):
        theirs = strategy_of(base)
        yield f"{shared} by {theirs}: {strategy_of(requested)} can't be combined with {theirs} on one device"
    elif isinstance(requested, TimeSlicingSettings) and isinstance(base, TimeSlicingSettings):
        if requested.interval not in {base.interval, Interval.DEFAULT}:
            yield f"{shared} with interval {base.interval}, which a claim can't change to {requested.interval}"
    elif isinstance(requested, MpsSettings) and isinstance(base, MpsSettings):
        for what, maximum, asked, is_memory in (
            ("active thread percentage", base.active_thread_percentage, requested.active_thread_percentage, False),
            ("pinned memory limit", base.pinned_memory_limit, requested.pinned_memory_limit, True),
        ):
            if maximum is not None and asked is not None and asked > maximum:
                texts = [str(Quantity.of(amount, binary=is_memory)) for amount in (maximum, asked)]
                yield f"{shared}: a claim may only lower its {what} of {texts[0]}, not raise it to {texts[1]}"
        if requested.multi_user and not base.multi_user:
            yield f"{shared} by clients of one user: a claim can't set multiUser"


def _capability_faults(
    result: AllocatedDevice, gpu: NvidiaGpu, name: str, settings: MpsSettings
) -> Iterator[ConfigFault]:
    """Yield a fault if the GPU is too old for MPS, or for what the settings ask of it."""
    text = gpu.compute_capability
    if text is None:
        return
    capability = tuple(int(part) for part in text.split(".")[:2])
    limits = settings.multi_user or (settings.active_thread_percentage, settings.pinned_memory_limit) != (None, None)
    if capability < _KEPLER or (limits and capability < _VOLTA):
        what, needed = ("MPS", "3.5") if capability < _KEPLER else ("MPS with limits or several users", "7.0")
        yield fault_of(result, f"{what} needs compute capability {needed}, {name} has {text}")


def _disagreements(group: Sequence[RequestedSharing]) -> Iterator[ConfigFault]:
    """Yield a fault for each result of the claim that requests the same device shared in a different way."""
    first = group[0]
    for other in group[1:]:
        if other.settings != first.settings:
            result, request = other.claimed.result, first.claimed.result.request
            message = f"{result.device} can't be shared in two ways: request {request} has another config"
            yield fault_of(result, message)


def _several_mps_devices(requested: Mapping[str, Sequence[RequestedSharing]]) -> Iterator[ConfigFault]:
    """Yield a fault for each request with several devices under MPS: a container talks to only one MPS daemon."""
    by_request: dict[str, dict[str, AllocatedDevice]] = {}
    for shared_name, group in requested.items():
        for one in group:
            if isinstance(one.settings, MpsSettings):
                by_request.setdefault(one.claimed.result.base_request, {})[shared_name] = one.claimed.result
    for found in by_request.values():
        if len(found) > 1:
            first, *_ = found.values()
            listed = ", ".join(sorted(found))
            yield fault_of(
                first, f"a container talks to one MPS daemon, but each of {listed} has its own: request one device"
            )


def limits_of(group: Sequence[RequestedSharing], requested: RequestedSharing, settings: MpsSettings) -> ClientLimits:
    """Return the limits of one result's user, who gets all shares of its request, added up, as one limit."""
    request = requested.claimed.result.base_request
    limits = [other.limits for other in group if other.claimed.result.base_request == request]
    threads = _sum([limit.active_thread_percentage for limit in limits], settings.active_thread_percentage or 100)
    memory = _sum([limit.pinned_memory_limit for limit in limits], settings.pinned_memory_limit)
    return ClientLimits(threads, memory and memory // _MIB * _MIB)


def _sum(limits: Sequence[int | None], maximum: int | None) -> int | None:
    if not limits or any(limit is None for limit in limits):
        return None
    total = sum(limit for limit in limits if limit is not None)
    return total if maximum is None else min(total, maximum)
