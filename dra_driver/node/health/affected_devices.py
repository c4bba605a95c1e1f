"""Affected devices: the published devices that a fault affects, and the taints that they get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dra_driver.base.names import gpu_name
from dra_driver.base.wire import DeviceTaint, DeviceTaints, TaintEffect
from dra_driver.node.health.cordons import Cordon
from dra_driver.node.health.faults import (
    UNKNOWN,
    Fault,
    FaultKey,
    FaultVerdict,
    HealthPolicy,
    Subject,
)

# Affected devices: the published devices that a fault affects, and the taints that they get.

_WORST = (TaintEffect.NO_EXECUTE, TaintEffect.NO_SCHEDULE, TaintEffect.NONE)


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """A published device by name, and its place: its GPU and, for a partition, profile and first memory slice.

    `shared` is the name of the device of which it is a share, or its own name if it is not a share.
    """

    name: str
    gpu: str
    partition: tuple[int, int] | None = None
    shared: str = ""

    def is_cordoned_by(self, cordon: Cordon) -> bool:
        """Return whether a cordon names this device, the device that it is a share of, or its GPU."""
        return cordon.device in {self.name, self.shared, gpu_name(self.gpu)}


def is_affected(place: DevicePlace, fault: Fault) -> bool:
    """Return whether a fault affects a device."""
    return is_within(place, fault.subject)


def is_within(place: DevicePlace, subject: Subject) -> bool:
    """Return whether a device is the subject, or a partition or share of it."""
    return place.gpu == subject.gpu and subject.partition in {None, place.partition}


def verdicts_of(
    places: Iterable[DevicePlace],
    faults: Iterable[Fault],
    policy: HealthPolicy,
    now: float,
    cordons: Iterable[Cordon] = (),
    *,
    limited: Callable[[Iterable[FaultVerdict]], Iterable[FaultVerdict]] = tuple,
) -> Mapping[str, tuple[FaultVerdict, ...]]:
    """Return, by device name, the policy's verdicts on the faults that affect the device, the most important first.

    Of two faults with the same key, the one with the worse effect counts, with the earlier start of both. `limited`
    returns the verdicts with NO_EXECUTE only if the cluster's budget allows it.
    """
    places, cordons = tuple(places), tuple(cordons)
    verdicts = tuple(limited(policy.verdicts(faults, len({place.gpu for place in places}), now)))
    found: dict[str, tuple[FaultVerdict, ...]] = {}
    for place in places:
        worst: dict[FaultKey, FaultVerdict] = {}
        for verdict in verdicts:
            if is_affected(place, verdict.fault):
                key = verdict.fault.key
                worst[key] = _worse(worst[key], verdict) if key in worst else verdict
        held = [cordon.since for cordon in cordons if place.is_cordoned_by(cordon)]
        if held:
            worst[FaultKey.CORDONED] = _cordon_verdict(place, min(held), policy)
        if worst:
            found[place.name] = tuple(worst[key] for key in sorted(worst, key=lambda one: one.rank))
    return found


def with_unknown(
    verdicts: Mapping[str, tuple[FaultVerdict, ...]], places: Iterable[DevicePlace], since: float
) -> Mapping[str, tuple[FaultVerdict, ...]]:
    """Return the verdicts with one more on each device: it is not known whether it may be offered."""

    def of(place: DevicePlace) -> tuple[FaultVerdict, ...]:
        fault = Fault(FaultKey.UNMONITORED, Subject(place.gpu), UNKNOWN, since, since)
        others = (one for one in verdicts.get(place.name, ()) if one.fault.key is not FaultKey.UNMONITORED)
        found = (*others, FaultVerdict(fault, TaintEffect.NO_SCHEDULE, since))
        return tuple(sorted(found, key=lambda one: one.fault.key.rank))

    return {place.name: of(place) for place in places}


def taints_of(verdicts: Mapping[str, tuple[FaultVerdict, ...]], domain: str) -> DeviceTaints:
    """Return the taints of each device that has verdicts. Their keys begin with `domain`, the driver's name."""
    return {name: tuple(_taint(verdict, domain) for verdict in found) for name, found in verdicts.items()}


def _cordon_verdict(place: DevicePlace, since: float, policy: HealthPolicy) -> FaultVerdict:
    fault = Fault(FaultKey.CORDONED, Subject(place.gpu, place.partition), "", since, since)
    return FaultVerdict(fault, policy.rules[FaultKey.CORDONED].effect, since)


def _worse(one: FaultVerdict, other: FaultVerdict) -> FaultVerdict:
    worse = min(one, other, key=lambda verdict: (_WORST.index(verdict.effect), verdict.since))
    return replace(worse, since=min(one.since, other.since))


def _taint(verdict: FaultVerdict, domain: str) -> DeviceTaint:
    since = datetime.fromtimestamp(verdict.since, UTC)
    return DeviceTaint(f"{domain}/{verdict.fault.key}", verdict.fault.value, verdict.effect, since)
