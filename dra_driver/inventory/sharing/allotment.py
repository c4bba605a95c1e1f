"""Shares: what a device is published as when a rule shares it.

In: the capacities of the whole device, and its rule. Out: capacities and request policies of the one device that may be
allocated many times, or the memory of plain replicas. Pure. Every capacity gets a policy, because the scheduler gives
the first share all of a capacity that has none. The size of a share is what the scheduler rounds a request to by these
policies; it is not computed again when a claim is prepared.

Source: Kubernetes API resource/v1 CapacityRequestPolicy; KEP-5075 (consumable capacity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dra_driver.hardware.published.rows import COMPUTE, MEMORY, MEMORY_SLICE, SHARES
from dra_driver.inventory.device import RequestPolicy
from dra_driver.inventory.sharing.rules import Portion, SharingRule
from dra_driver.model.shares import DeviceType, ShareMode
from dra_driver.model.sharing import MpsSettings, SharingSettings, TimeSlicingSettings

MIB = 1 << 20
ALL_COMPUTE = 100  # in percent


@dataclass(frozen=True, slots=True)
class Allotment:
    """Capacities and policies of a device that may be allocated many times; `largest` is the most of one share."""

    capacity: Mapping[str, int]
    policies: Mapping[str, RequestPolicy]
    largest: int


def replica_memory(memory: int, replicas: int) -> int:
    """Return the memory of one replica in bytes, in whole MiB because MPS daemons count in those.

    >>> replica_memory(81559 << 20, 4) >> 20
    20389
    """
    return memory // replicas // MIB * MIB


def allot(capacity: Mapping[str, int], rule: SharingRule) -> Allotment | str:
    """Return the amounts of a shared device and of one share of it, or the reason why it can't be shared, as a text.

    With n replicas exactly n shares fit; with a portion, shares fit as long as enough is left for them.
    """
    mode = ShareMode.REPLICAS if rule.portion is None else rule.mode
    whole = without_slices(capacity)
    policies = {name: RequestPolicy(0) for name in whole}  # published but not counted: all shares use the same engines
    if mode is ShareMode.REPLICAS:
        count = rule.replicas or 1
        one = replica_memory(whole.get(MEMORY, 0), count)
        if MEMORY in whole:
            if not one:
                return f"its memory can't be divided into {count} replicas"
            policies[MEMORY] = RequestPolicy(one, values=(one,))
        return Allotment({**whole, SHARES: count}, {**policies, SHARES: RequestPolicy(1, values=(1,))}, one)
    assert rule.portion is not None  # noqa: S101 - every mode but replicas has one
    counted = MEMORY if mode is ShareMode.MEMORY else COMPUTE
    if mode is ShareMode.COMPUTE:
        whole[COMPUTE] = ALL_COMPUTE
    if counted not in whole:
        return "it reports no memory of its own to share"
    policy = _range(rule.portion, whole[counted])
    if isinstance(policy, str):
        return f"{counted}: {policy}"
    return Allotment(whole, {**policies, counted: policy}, policy.maximum or whole[counted])


def without_slices(capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the capacities without memory slices: those mark which partitions overlap, and shares always overlap."""
    return {name: value for name, value in capacity.items() if not name.startswith(MEMORY_SLICE)}


def settings_of(
    rule: SharingRule, allotment: Allotment, device_type: DeviceType, ids: tuple[str, ...]
) -> SharingSettings | None:
    """Return a rule's settings, completed for one device, which `ids` (UUID, index) identify.

    An MPS daemon's default for a client is set to the largest possible share, since a client can only lower it.
    """
    settings = rule.settings
    if isinstance(settings, TimeSlicingSettings):  # a MIG device has no interval of its own
        return settings if device_type is DeviceType.GPU else TimeSlicingSettings()
    if not isinstance(settings, MpsSettings):
        return None
    mode = ShareMode.REPLICAS if rule.portion is None else rule.mode
    memory = next((settings.per_device_limits[one] for one in ids if one in settings.per_device_limits), None)
    memory = settings.pinned_memory_limit if memory is None else memory
    if memory is None and mode is not ShareMode.COMPUTE and allotment.largest:
        memory = allotment.largest
    threads = settings.active_thread_percentage
    if threads is None and mode is ShareMode.COMPUTE:
        threads = allotment.largest
    if threads is None and mode is ShareMode.REPLICAS and rule.replicas:
        threads = max(1, ALL_COMPUTE // rule.replicas)
    return replace(settings, active_thread_percentage=threads, pinned_memory_limit=memory, per_device_limits={})


def _range(portion: Portion, total: int) -> RequestPolicy | str:
    """Return the policy for portions of what a device has (`total`), or a text on why they do not fit.

    The API requires that the maximum is a whole number of steps from the minimum, and that there is room for one step.
    """
    most = min(total, portion.maximum or total)
    maximum = portion.minimum + (most - portion.minimum) // portion.step * portion.step
    if most < portion.minimum or portion.default > maximum:
        return f"a share takes {portion.default}, but the device has only {most}"
    if portion.minimum + portion.step > total:
        return f"a share takes {portion.minimum}, or {portion.step} more, but the device has only {total}"
    return RequestPolicy(portion.default, portion.minimum, maximum, portion.step)
