"""Shares: what a device is published as when a rule shares it.

In: the capacities of the whole device, and its rule. Out: capacities and request policies of the one device that may be
allocated many times, or the memory of plain replicas. Pure. Every capacity gets a policy: the scheduler takes all of
one that has none for the first share. What it rounds to with these policies is what a share is; nothing is computed
anew when a claim is prepared.

Source: Kubernetes API resource/v1 CapacityRequestPolicy; KEP-5075 (consumable capacity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dra_driver.inventory.attributes import COMPUTE, MEMORY, MEMORY_SLICE, SHARES
from dra_driver.inventory.device import DeviceType, RequestPolicy, ShareMode
from dra_driver.inventory.sharing.rules import Portion, SharingRule
from dra_driver.model.sharing import MpsSettings, SharingSettings, TimeSlicingSettings

MIB = 1 << 20
ALL_COMPUTE = 100  # percent


@dataclass(frozen=True, slots=True)
class Allotment:
    """Capacities and policies of a device that may be allocated many times; `largest` is the most of one share."""

    capacity: Mapping[str, int]
    policies: Mapping[str, RequestPolicy]
    largest: int


def replica_memory(memory: int, replicas: int) -> int:
    """Return the memory of one replica in bytes: whole MiB, as MPS daemons count.

    >>> replica_memory(81559 << 20, 4) >> 20
    20389
    """
    return memory // replicas // MIB * MIB


def allot(capacity: Mapping[str, int], rule: SharingRule) -> Allotment | str:
    """Return what a device shared by a rule has and how much one share takes; or why that can't be.

    Shapes: with n replicas exactly n shares fit; with a portion as many as there are amounts left.
    """
    mode = ShareMode.REPLICAS if rule.portion is None else rule.mode
    whole = without_slices(capacity)
    policies = {name: RequestPolicy(0) for name in whole}  # told, not counted: all shares use the same engines
    if mode is ShareMode.REPLICAS:
        count = rule.replicas or 1
        one = replica_memory(whole.get(MEMORY, 0), count)
        if MEMORY in whole:
            if not one:
                return f"its memory does not divide into {count} replicas"
            policies[MEMORY] = RequestPolicy(one, values=(one,))
        return Allotment({**whole, SHARES: count}, {**policies, SHARES: RequestPolicy(1, values=(1,))}, one)
    assert rule.portion is not None  # noqa: S101 - the other modes have one
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
    """Leave out which memory slices a partition covers: they say what overlaps, and shares all do."""
    return {name: value for name, value in capacity.items() if not name.startswith(MEMORY_SLICE)}


def settings_of(
    rule: SharingRule, allotment: Allotment, device_type: DeviceType, ids: tuple[str, ...]
) -> SharingSettings | None:
    """Complete a rule's settings for one device, known by `ids` (UUID, index).

    What an MPS daemon gives a client that asks for nothing is the largest share there is: clients can only lower it.
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
    """Fit a portion into what a device has: the API wants the maximum to be on a step, and room for a second one."""
    most = min(total, portion.maximum or total)
    maximum = portion.minimum + (most - portion.minimum) // portion.step * portion.step
    if most < portion.minimum or portion.default > maximum:
        return f"a share takes {portion.default} and the device has {most}"
    if portion.minimum + portion.step > total:
        return f"a share takes {portion.minimum} or {portion.step} more, and the device has {total}"
    return RequestPolicy(portion.default, portion.minimum, maximum, portion.step)
