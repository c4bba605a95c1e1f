"""The sharing that one result of a claim requests for its device. Pure.

On a device of its own the claim decides: claim beats class, later beats earlier. On a device shared with other claims,
class and agent decide, and the claim may only lower a limit for its own clients. What is wrong with a request is
decided in `sharing_faults`.
Source: KEP-4381 (configs and their order), KEP-5075 (consumed capacity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dra_driver.claims.allocated.allocated_claim import AllocatedDevice
from dra_driver.claims.allocated.claim_on_node import ClaimedDevice, ClaimOnNode
from dra_driver.inventory.device import Device
from dra_driver.model.quantity import Quantity
from dra_driver.model.shares import DeviceType
from dra_driver.model.sharing import ClientLimits, MpsSettings, SharingSettings


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
    """Reduce limits by device to the limit of this device."""
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
