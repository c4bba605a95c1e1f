"""Compare: whether a stored slice has the content that we want, and which fields differ.

In: specs in wire form. Out: names of differing fields, such as "devices.taints". Pure. Quantities are compared by
value; absent and empty are the same; a taint whose `timeAdded` we left open equals one with any time; fields that we
don't know belong to others and never differ.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dra_driver.base import errors, names
from dra_driver.base.errors import InputError
from dra_driver.base.quantity import Quantity
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.versions import (
    BINDING_CONDITIONS,
    CONSUMABLE_CAPACITY,
    DEVICE_TAINTS,
    LIST_ATTRIBUTES,
    PARTITIONABLE_DEVICES,
    Since,
    is_before,
)
from dra_driver.base.wire import DeviceTaint, DeviceWire, SliceWire, TaintEffect, Wire
from dra_driver.hardware.facts import Problem
from dra_driver.node.devices.describing import counter_set_wire, device_wire
from dra_driver.node.devices.offering import KeptFields, Offering

# The fields of resource.k8s.io/v1 up to 1.37 that belong to the publishing driver. Any other field in a stored object
# was put there by a newer server or by another client.
DEVICE_FIELDS = (
    "name",
    "attributes",
    "capacity",
    "consumesCounters",
    "taints",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "bindsToNode",
    "bindingConditions",
    "bindingFailureConditions",
    "allowMultipleAllocations",
)
COUNTER_FIELDS = ("devices.consumesCounters", "sharedCounters")
TAINT_FIELD = "devices.taints"
SHARE_FIELD = "devices.allowMultipleAllocations"

_GATES = {
    "sharedCounters": PARTITIONABLE_DEVICES,
    "devices.consumesCounters": PARTITIONABLE_DEVICES,
    "devices.nodeName": PARTITIONABLE_DEVICES,
    "devices.nodeSelector": PARTITIONABLE_DEVICES,
    "devices.allNodes": PARTITIONABLE_DEVICES,
    "devices.taints": DEVICE_TAINTS,
    "devices.bindsToNode": BINDING_CONDITIONS,
    "devices.bindingConditions": BINDING_CONDITIONS,
    "devices.bindingFailureConditions": BINDING_CONDITIONS,
    "devices.allowMultipleAllocations": CONSUMABLE_CAPACITY,
    "devices.capacity": CONSUMABLE_CAPACITY,
    "devices.attributes": LIST_ATTRIBUTES,
}
_TIME_TOLERANCE_S = 1.0  # the server stores times in whole seconds


def gates_behind(fields: Iterable[str]) -> tuple[str, ...]:
    """Return the feature gates that are probably off if the server dropped these fields."""
    return tuple(sorted({_GATES[f] for f in fields if f in _GATES}))


def differing_fields(wanted: Wire, stored: Wire) -> frozenset[str]:
    """Return the names of the fields of a slice's spec in which `stored` differs from `wanted`.

    "devices" means that the slice contains other devices, or the same ones in another order.
    """
    differing = {key for key in ("driver", "nodeName") if wanted.get(key) != stored.get(key)}
    if wanted.get("pool") != _known_pool(stored):
        differing.add("pool")
    if _counter_sets(wanted) != _counter_sets(stored):
        differing.add("sharedCounters")
    ours, theirs = wanted.get("devices") or [], stored.get("devices") or []
    if [d.get("name") for d in ours] != [d.get("name") for d in theirs]:
        differing.add("devices")
    found = {d.get("name"): d for d in theirs}
    for device in ours:
        if (other := found.get(device.get("name"))) is not None:
            differing |= {f"devices.{name}" for name in _differing_device_fields(device, other)}
    return frozenset(differing)


def _differing_device_fields(wanted: DeviceWire, stored: DeviceWire) -> set[str]:
    if wanted == stored:
        return set()
    differing = {
        name
        for name in DEVICE_FIELDS
        if name != "taints" and _canonical(name, wanted.get(name)) != _canonical(name, stored.get(name))
    }
    if not _same_taints(wanted.get("taints") or [], stored.get("taints") or []):
        differing.add("taints")
    return differing


def _known_pool(spec: Wire) -> Wire:
    pool = spec.get("pool") or {}
    return {key: pool[key] for key in ("name", "generation", "resourceSliceCount") if key in pool}


def _counter_sets(spec: Wire) -> list[Any]:
    return [(c.get("name"), _quantities(c.get("counters"))) for c in spec.get("sharedCounters") or []]


def _canonical(name: str, value: Any) -> Any:
    """Return a field's value in a form that is equal for values that the API treats as equal."""
    if not value:
        return None
    if name == "consumesCounters":
        return [(c.get("counterSet"), _quantities(c.get("counters"))) for c in value]
    if name == "capacity":
        return {key: _capacity(item) for key, item in value.items()}
    return value


def _capacity(capacity: Wire) -> Any:
    return {key: _quantity_tree(item) for key, item in capacity.items() if item}


def _quantities(counters: Mapping[str, Wire] | None) -> dict[str, Any]:
    return {name: _quantity_tree(counter.get("value")) for name, counter in (counters or {}).items()}


def _quantity_tree(value: Any) -> Any:
    """Parse every text below a capacity as a quantity, which all of them are."""
    if isinstance(value, dict):
        return {key: _quantity_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quantity_tree(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return Quantity.parse(value)
    except InputError:
        return value


def taint_key(taint: Wire) -> tuple[str, str, str]:
    """Return what identifies a taint: its key, value and effect."""
    return taint.get("key", ""), taint.get("value") or "", taint.get("effect", "")


def _same_taints(wanted: list[Wire], stored: list[Wire]) -> bool:
    if len(wanted) != len(stored):
        return False
    return all(
        taint_key(ours) == taint_key(theirs) and _same_time(ours.get("timeAdded"), theirs.get("timeAdded"))
        for ours, theirs in zip(wanted, stored, strict=True)
    )


def _same_time(wanted: str | None, stored: str | None) -> bool:
    if wanted is None or wanted == stored:
        return True
    if stored is None:
        return False
    try:
        apart = datetime.fromisoformat(wanted) - datetime.fromisoformat(stored)
    except (ValueError, TypeError):
        return False
    return abs(apart.total_seconds()) <= _TIME_TOLERANCE_S


_BY_WEIGHT = (TaintEffect.NO_EXECUTE, TaintEffect.NO_SCHEDULE, TaintEffect.NONE)


@dataclass(frozen=True, slots=True)
class PoolContent:
    """The devices and counter sets of a pool."""

    devices: tuple[DeviceWire, ...] = ()
    counter_sets: tuple[Wire, ...] = ()


def content_of(offering: Offering, *, server_minor: int) -> PoolContent:
    """Return an offering in the form of the API. `server_minor` 0, an unknown version, is taken for the newest."""
    devices = []
    for device in offering.devices:
        wire = device_wire(device)
        if taints := accepted_taints(offering.taints.get(device.name, ()), server_minor=server_minor):
            wire["taints"] = [taint.wire() for taint in taints]
        devices.append(wire)
    return PoolContent(tuple(devices), tuple(counter_set_wire(*item) for item in offering.counter_sets.items()))


def accepted_taints(taints: Sequence[DeviceTaint], *, server_minor: int) -> tuple[DeviceTaint, ...]:
    """Return the taints that a server accepts on one device; if there are too many, the mildest are left out.

    Among those of one effect, the first ones stay. The result is in the order of effect, key and value, so that the
    same taints are always written in the same way.
    """
    is_old = is_before(server_minor, Since.INFORMING_TAINTS)
    known = [taint for taint in taints if taint.effect.is_blocking or not is_old]
    known.sort(key=lambda taint: _BY_WEIGHT.index(taint.effect))
    kept = known[: errors.TAINTS_PER_DEVICE_1_34 if is_old else errors.TAINTS_PER_DEVICE]
    return tuple(sorted(kept, key=lambda taint: (_BY_WEIGHT.index(taint.effect), taint.key, taint.value)))


# Validity: what the API server or the scheduler would reject in a pool.

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


def find_faults(content: PoolContent, *, server_minor: int) -> tuple[str, ...]:
    """Return every reason for which this pool would be refused or skipped; an empty tuple if it is valid."""
    is_old = is_before(server_minor, Since.COUNTERS_APART)
    counters = {c.get("name", ""): frozenset(c.get("counters") or ()) for c in content.counter_sets}
    return (
        *_name_faults("device", [d.get("name", "") for d in content.devices]),
        *_name_faults("counter set", [c.get("name", "") for c in content.counter_sets]),
        *(fault for c in content.counter_sets for fault in _counter_set_faults(c)),
        *(fault for d in content.devices for fault in _device_faults(d, counters, is_old=is_old)),
    )


def has_blocking_taint(device: DeviceWire) -> bool:
    """Return whether a taint keeps pods away from the device."""
    return any(t.get("effect") in _BLOCKING_EFFECTS for t in device.get("taints") or ())


def _is_shared(device: DeviceWire) -> bool:
    return device.get("allowMultipleAllocations") is True


def _name_faults(noun: str, found: list[str]) -> Iterator[str]:
    for name, times in Counter(found).items():
        if times > 1:
            yield f"{noun} {name!r} occurs {times} times in the pool"
        if not names.is_dns_label(name):
            yield f"{noun} name {name!r} is not a DNS label"


def _counter_set_faults(counter_set: Wire) -> Iterator[str]:
    count = len(counter_set.get("counters") or ())
    if not 1 <= count <= errors.COUNTERS_PER_SET:
        maximum = errors.COUNTERS_PER_SET
        yield f"counter set {counter_set.get('name')!r} has {count} counters, 1 to {maximum} are allowed"


def _device_faults(device: DeviceWire, counters: dict[str, frozenset[str]], *, is_old: bool) -> Iterator[str]:
    name = device.get("name")
    count = len(device.get("attributes") or ()) + len(device.get("capacity") or ())
    if count > errors.DEVICE_ATTRIBUTES_AND_CAPACITIES:
        maximum = errors.DEVICE_ATTRIBUTES_AND_CAPACITIES
        yield f"device {name!r} has {count} attributes and capacities, at most {maximum} are allowed"
    for capacity, wire in (device.get("capacity") or {}).items() if _is_shared(device) else ():
        if "default" not in (wire.get("requestPolicy") or {}):
            yield f"device {name!r} may be allocated many times, but the first claim would take all its {capacity}"
    max_taints = errors.TAINTS_PER_DEVICE_1_34 if is_old else errors.TAINTS_PER_DEVICE
    if len(device.get("taints") or ()) > max_taints:
        yield f"device {name!r} has {len(device['taints'])} taints, at most {max_taints} are allowed"
    consumed = device.get("consumesCounters") or ()
    if not is_old and len(consumed) > errors.COUNTER_CONSUMPTIONS_PER_DEVICE:
        maximum = errors.COUNTER_CONSUMPTIONS_PER_DEVICE
        yield f"device {name!r} consumes from {len(consumed)} counter sets, at most {maximum} are allowed"
    for consumption in consumed:
        known = counters.get(consumption.get("counterSet", ""))
        if known is None:
            yield f"device {name!r} consumes from counter set {consumption.get('counterSet')!r}, which is missing"
        elif missing := sorted(set(consumption.get("counters") or ()) - known):
            yield f"device {name!r} consumes counters that {consumption['counterSet']!r} does not have: {missing}"


# Dropped fields: what the API server did not keep because their feature gates are off.

log = logging.getLogger(__name__)

FIELDS_DROPPED = "controller.fields-dropped"
TAINTS_AGAIN_SECONDS = 600.0  # seconds until a server that dropped taints is asked about them again


class DroppedFields:
    """The dropped fields of one pool. Not thread-safe: the owner holds a lock."""

    def __init__(
        self, pool: str, known: frozenset[str] = frozenset(), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool, self._clock = pool, clock
        self.fields = known  # fields in `known` were reported before, and are not reported again
        self.unsafe: frozenset[str] = frozenset()
        self._assumed: frozenset[str] = frozenset()  # those that the server refused to show
        self._taints_asked_at = 0.0

    @property
    def kept(self) -> KeptFields:
        """Return what may be offered to this server."""
        unsafe = self.unsafe
        return KeptFields(
            counters=unsafe.isdisjoint(COUNTER_FIELDS),
            shares=SHARE_FIELD not in unsafe,
            taints=TAINT_FIELD not in unsafe,
        )

    @property
    def taints_due_s(self) -> float | None:
        """Return the seconds until the server is asked about taints again; None unless it is known to drop them."""
        if TAINT_FIELD not in self.unsafe:
            return None
        return max(0.0, self._taints_asked_at + TAINTS_AGAIN_SECONDS - self._clock())

    @property
    def taints_are_due(self) -> bool:
        """Return whether the server is to be asked about taints again now."""
        return self.taints_due_s == 0.0

    def record(self, sent: SliceWire, answer: SliceWire, *, version: str) -> tuple[Wire | None, frozenset[str]]:
        """Compare an answer with what was sent, and record the fields that were dropped.

        Returns the spec to remember in place of the stored one (None to remember the stored one), and the unsafe fields
        that this answer has lost.
        """
        lost = differing_fields(sent["spec"], answer["spec"])
        unsafe = set(lost.intersection((*COUNTER_FIELDS, SHARE_FIELD)))
        if TAINT_FIELD in lost and any(has_blocking_taint(d) for d in sent["spec"].get("devices", ())):
            unsafe.add(TAINT_FIELD)
        new = lost - self.fields
        self.fields |= lost
        self._add_unsafe(frozenset(unsafe))
        if new:
            self._report(new, version)
        return (sent["spec"] if lost and not unsafe else None), frozenset(unsafe)

    def add(self, other: DroppedFields) -> None:
        """Add the dropped fields that were found elsewhere."""
        self.fields |= other.fields
        self._assumed = (self._assumed | other._assumed) & self.fields
        self._add_unsafe(other.unsafe)

    def assume(self, lost: frozenset[str], *, version: str) -> None:
        """Record fields as lost and unsafe, because the server refused to show whether it keeps them."""
        self._assumed |= lost
        if new := lost - self.fields:
            self._report(new, version)
        self.fields |= lost
        self._add_unsafe(lost)

    def forget_taints(self) -> None:
        """Forget that taints were dropped, because the server is asked again."""
        self.forget_fields(frozenset({TAINT_FIELD}))

    def forget_fields(self, lost: frozenset[str]) -> None:
        """Forget that some fields were dropped, because the server is asked again."""
        self.fields -= lost
        self.unsafe -= lost
        self._assumed -= lost

    def forget_harmless(self) -> None:
        """Forget the fields whose loss is harmless, because they will be sent again with new content."""
        self.fields = self.unsafe

    def forget(self) -> None:
        """Forget all dropped fields: another server may keep what the last one dropped."""
        self.fields = self.unsafe = self._assumed = frozenset()

    def problems(self) -> tuple[Problem, ...]:
        """Return a problem that lists the dropped fields; none if no field was dropped."""
        if not self.fields:
            return ()
        verb = "may drop" if self.fields <= self._assumed else "dropped"
        message = f"the API server {verb} {_listed(self.fields)}; {_hint(self.fields, self._assumed)}"
        return (Problem(FIELDS_DROPPED, self._pool, message),)

    def _add_unsafe(self, lost: frozenset[str]) -> None:
        if TAINT_FIELD in lost - self.unsafe:
            self._taints_asked_at = self._clock()
        self.unsafe |= lost

    def _report(self, lost: frozenset[str], version: str) -> None:
        keys = fields(pool=self._pool, reason=_listed(lost), version=version, hint=_hint(lost, self._assumed))
        log.warning("the API server dropped fields of our slices", extra=keys)


def _listed(lost: frozenset[str]) -> str:
    return ", ".join(sorted(lost))


def _hint(lost: frozenset[str], assumed: frozenset[str]) -> str:
    gates = ", ".join(gates_behind(lost)) or "unknown"
    instead = "whole GPUs and existing partitions are offered; " if lost.intersection(COUNTER_FIELDS) else ""
    if SHARE_FIELD in lost:
        instead += "shared devices are offered as their replicas, or whole if none are configured; "
    if TAINT_FIELD in lost:
        instead += "tainted devices that no claim has are withheld; "
    if lost <= assumed:
        return f"{instead}it refused the dry run that would show whether it keeps them, and is asked again soon"
    only_taints = lost == {TAINT_FIELD}
    then = (
        "the server is asked again every ten minutes" if only_taints else "restart this agent after switching them on"
    )
    return f"{instead}feature gates that are probably off: {gates}; {then}"
