"""What can be wrong with how a claim requests its devices to be shared: one function for each rule yields its faults.

Source: KEP-5075 (consumed capacity); NVIDIA, "Multi-Process Service" (compute capabilities, one daemon per container).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dra_driver.claims.allocated.allocated_claim import AllocatedDevice
from dra_driver.claims.allocated.claim_on_node import fault_of
from dra_driver.claims.config.device_config import ConfigFault
from dra_driver.claims.steps.requested_sharing import RequestedSharing
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.inventory.device import Device
from dra_driver.model.quantity import Quantity
from dra_driver.model.sharing import Interval, MpsSettings, SharingSettings, Tenants, TimeSlicingSettings, strategy_of

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
