"""Taints: the published devices that a fault affects, the taints that they get, and which of them may delete pods now.

Where only a few GPUs of a cluster may lose their pods at a time, NoExecute becomes NoSchedule unless this GPU or
partition has a slot of the cluster's budget. A separate thread asks for slots; it exists only while some are needed. A
slot that was granted lasts as long as its fault, and is on disk before the taint is published, so a restart needs no
second one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from dra_driver.base.errors import ApiError, DriverError, NodeError
from dra_driver.base.names import gpu_name
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import DeviceTaint, DeviceTaints, TaintEffect
from dra_driver.node.health.cordons import Cordon
from dra_driver.node.health.faults import (
    UNKNOWN,
    Fault,
    FaultKey,
    FaultVerdict,
    HealthPolicy,
    HeldBackReason,
    Subject,
)
from dra_driver.node.health.stored_health import GRANTS, HealthStore

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


log = logging.getLogger(__name__)

FAULT_SECONDS = 30.0  # seconds until the next request if the API server did not answer, or refused
MAX_AGAIN = 600.0


class Slots(Protocol):
    """The cluster's slots."""

    def acquire(self, holder: str) -> float:
        """Take a slot. Return 0 if the holder has one now, otherwise the seconds until one may be free.

        Raises: ApiError.
        """


class EvictionBudget:
    """The grants of one node. Any thread may call any method; `limited` never waits for the API server.

    Args:
        slots: the slots of the cluster.
        node: this node's name, with which the names of holders begin.
        store: the store in which grants are kept.
        changed: called when a slot was granted.
        alert: called with a sentence when a slot was not granted.
    """

    def __init__(
        self,
        slots: Slots,
        *,
        node: str,
        store: HealthStore,
        changed: Callable[[], None],
        alert: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots, self._node, self._store, self._changed, self._alert = slots, node, store, changed, alert
        self._clock = clock
        self._mutex = threading.Lock()
        self._wanted: frozenset[Subject] = frozenset()
        self._granted: frozenset[Subject] = frozenset()
        self._is_loaded = False
        self._ask_at = float("-inf")  # the earliest time of the next request
        self._loop = Loop("evictions", self._turn, failure="the budget of evictions can't be read")

    def limited(self, verdicts: Iterable[FaultVerdict]) -> tuple[FaultVerdict, ...]:
        """Return the verdicts with NoExecute only if it was granted, and ask for the slots that are missing."""
        verdicts = tuple(verdicts)
        wanted = frozenset(one.fault.subject for one in verdicts if one.effect is TaintEffect.NO_EXECUTE)
        with self._mutex:
            self._load()
            is_over = bool(self._granted - wanted)
            self._wanted, self._granted = wanted, self._granted & wanted
            granted = self._granted
        if is_over:
            self._save(granted)
        if wanted - granted:
            self._ask_soon()
        return tuple(
            replace(one, effect=TaintEffect.NO_SCHEDULE, held_back=HeldBackReason.BUDGET)
            if one.effect is TaintEffect.NO_EXECUTE and one.fault.subject not in granted
            else one
            for one in verdicts
        )

    def _ask_soon(self) -> None:
        try:
            self._loop.resume()
        except NodeError as error:  # the next verdicts ask again
            log.warning("a slot of the budget is not asked for", extra=fields(code=error.code, err=str(error)))

    def _turn(self) -> float | None:
        """Ask for one slot; return the seconds until the next request, None if no slot is needed."""
        with self._mutex:
            missing = sorted(self._wanted - self._granted, key=_name)
            pause = self._ask_at - self._clock()
        if not missing:
            return None
        if pause > 0:
            return pause
        wait = self._ask(missing[0])
        if wait <= 0:
            self._grant(missing[0])
            return 0.0
        self._ask_at = self._clock() + min(wait, MAX_AGAIN)
        return min(wait, MAX_AGAIN)

    def _ask(self, subject: Subject) -> float:
        """Return 0 if a slot was granted, otherwise the seconds until the next request."""
        try:
            wait = self._slots.acquire(f"{self._node}/{_name(subject)}")
        except ApiError as error:
            self._alert(f"{_name(subject)} keeps its pods: the budget of evictions can't be read: {error}")
            return FAULT_SECONDS
        if wait > 0:
            minutes = math.ceil(wait / 60)
            self._alert(f"{_name(subject)} keeps its pods: the budget of evictions is used up for {minutes} min")
        return wait

    def _grant(self, subject: Subject) -> None:
        with self._mutex:
            if subject not in self._wanted:
                return
            granted = self._granted | {subject}
        self._save(granted)
        with self._mutex:
            self._granted |= {subject}
        log.warning("pods of a device may be deleted now", extra=fields(device=_name(subject)))
        self._changed()

    def _load(self) -> None:
        """Read once what was granted before a restart. Until it can be read, no grant is known, and none is written."""
        if self._is_loaded:
            return
        try:
            stored: Any = self._store.read().get(GRANTS)
            rows = stored if isinstance(stored, list) else []
            self._granted |= frozenset(
                Subject(str(gpu), None if at is None else (int(at[0]), int(at[1]))) for gpu, at in rows
            )
        except (ValueError, TypeError, IndexError) as error:
            log.warning("the devices whose pods may be deleted are recorded wrongly", extra=fields(err=str(error)))
        except DriverError as error:
            log.warning("the devices whose pods may be deleted can't be read", extra=fields(err=str(error)))
            return
        self._is_loaded = True

    def _save(self, granted: frozenset[Subject]) -> None:
        if not self._is_loaded:
            return
        try:
            self._store.write({GRANTS: [[one.gpu, one.partition] for one in sorted(granted, key=_name)]})
        except DriverError as error:  # after a restart the Lease still has this node's name, and is taken for ours
            log.warning(
                "the devices whose pods may be deleted are not saved", extra=fields(code=error.code, err=str(error))
            )


def _name(subject: Subject) -> str:
    place = f"-{subject.partition[0]}-{subject.partition[1]}" if subject.partition else ""
    return f"{gpu_name(subject.gpu)}{place}"
