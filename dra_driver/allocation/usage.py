"""Usage: how much of a cluster's devices is held, and how much of the rest is fragmented.

In: slices and allocated claims as wire dicts. Out: `Usage`. A unit is a device that uses no counters, or a counter set
(which the partitions of one GPU share), measured by the mean over its counters: half a GPU held is half a unit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dra_driver.allocation.capacity import Amount, parse, shared_wires
from dra_driver.allocation.node_selector import matches_selector
from dra_driver.allocation.pools import DeviceId, DeviceRecord, Pool, PoolId, SliceRecord, counter_value
from dra_driver.allocation.rules import AllocatorError, AllocatorRules
from dra_driver.base.wire import ClaimWire, SliceWire, Wire

# Everything that is already held: the devices and the capacity of claims that have an allocation.


@dataclass(slots=True)
class ClaimHoldings:
    """The devices, shares and capacity that claims hold. Names of claims are "namespace/name"."""

    devices: dict[DeviceId, str] = field(default_factory=dict)
    shares: dict[DeviceId, list[str]] = field(default_factory=dict)
    capacity: dict[DeviceId, dict[str, Amount]] = field(default_factory=dict)
    by_pool: dict[PoolId, set[DeviceId]] = field(default_factory=dict)

    def add(self, claim: ClaimWire, *, shares: bool) -> set[PoolId]:
        """Add the devices and capacity of one claim; return the pools of its devices."""
        pools: set[PoolId] = set()
        allocation = (claim.get("status") or {}).get("allocation") or {}
        holder = claim_name(claim)
        for result in (allocation.get("devices") or {}).get("results") or []:
            if result.get("adminAccess"):
                continue
            device = (result["driver"], result["pool"], result["device"])
            pools.add(device[:2])
            self.by_pool.setdefault(device[:2], set()).add(device)
            if not shares or result.get("shareID") is None:
                self.devices[device] = holder
                continue
            self.shares.setdefault(device, []).append(holder)
            consumed = result.get("consumedCapacity")
            if consumed is not None:
                held = self.capacity.setdefault(device, {})
                for name, text in consumed.items():
                    held[name] = held.get(name, 0) + parse(text).value
        return pools


def held_by(claims: Iterable[ClaimWire], *, shares: bool) -> ClaimHoldings:
    """Collect what all these claims hold; `shares` says whether capacity can be shared."""
    held = ClaimHoldings()
    for claim in claims:
        held.add(claim, shares=shares)
    return held


def claim_name(claim: ClaimWire) -> str:
    """Return the name of a claim as messages write it: namespace/name."""
    metadata = claim["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


@dataclass(frozen=True, slots=True)
class Usage:
    """How many of the `devices` are `held`, and what part of the free ones is outside the node with the most of them.

    A GPU that is partitioned or shared counts as one device, of which a part may be held.
    """

    devices: int
    held: float
    free_elsewhere: float

    @property
    def share(self) -> float:
        """The part of the devices that is held, from 0 to 1."""
        return self.held / self.devices if self.devices else 0.0


def usage_of(slices: Sequence[SliceWire], allocated: Sequence[ClaimWire]) -> Usage:
    """Measure a cluster. Only pools with held devices are examined device by device."""
    held = held_by(allocated, shares=True)
    pools: dict[PoolId, list[SliceRecord]] = {}
    for order, wire in enumerate(slices):
        record = SliceRecord(wire, order)
        pools.setdefault(record.pool_id, []).append(record)
    free: dict[str, Fraction] = {}
    units, used = 0, Fraction(0)
    for pool, records in pools.items():
        for node, count, part in _held_parts(records, held) if pool in held.by_pool else _free_parts(records):
            units += count
            used += part
            free[node] = free.get(node, Fraction(0)) + count - part
    total = sum(free.values(), Fraction(0))
    elsewhere = 1 - max(free.values()) / total if total else Fraction(0)
    return Usage(units, float(used), float(elsewhere))


def _free_parts(records: Sequence[SliceRecord]) -> Iterator[tuple[str, int, Fraction]]:
    """Yield the node and the number of units of each slice of a pool with no held devices."""
    sets: dict[str, str] = {}
    for record in records:
        sets.update((one["name"], _node(record)) for one in record.sets)
        alone = len(record.wires)
        if record.consumes:
            alone -= sum(bool(wire.get("consumesCounters")) for wire in shared_wires(record.wires))
        yield _node(record), alone, Fraction(0)
    for node in sets.values():
        yield node, 1, Fraction(0)


def _held_parts(records: Sequence[SliceRecord], held: ClaimHoldings) -> list[tuple[str, int, Fraction]]:
    """Return the node of each unit of a pool, and the part of the unit that is held."""
    parts: list[tuple[str, int, Fraction]] = []
    sets: dict[str, tuple[str, Wire, dict[str, Fraction]]] = {}
    for record in records:
        for one in record.sets:
            sets[one["name"]] = (_node(record), one, {})
    for record in records:
        for device in record.devices:
            is_held = device.id in held.devices or device.id in held.shares
            if not device.counter_amounts:
                parts.append((_node(record), 1, _part(device, held)))
                continue
            for name, counters in device.counter_amounts if is_held else ():
                entry = sets.get(name)
                for counter, amount in counters if entry else ():
                    entry[2][counter] = entry[2].get(counter, Fraction(0)) + Fraction(amount)  # type: ignore[index]
    for node, one, taken in sets.values():
        shares = [
            taken.get(name, Fraction(0)) / Fraction(value)
            for name, wire in (one.get("counters") or {}).items()
            if (value := counter_value(wire))
        ]
        mean = sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)
        parts.append((node, 1, min(mean, Fraction(1))))
    return parts


def _part(device: DeviceRecord, held: ClaimHoldings) -> Fraction:
    """Return the part of a device without counters that is held."""
    if device.id in held.devices:
        return Fraction(1)
    taken = held.capacity.get(device.id)
    if not taken:
        return Fraction(0)
    shares = [Fraction(taken.get(c.name, 0)) / Fraction(c.total) for c in device.capacities if c.total]
    return min(max(shares, default=Fraction(0)), Fraction(1))


def _node(record: SliceRecord) -> str:
    return str(record.spec.get("nodeName") or record.pool_id[1])


# Compatibility groups: which devices may draw from one counter set at the same time.

Groups = frozenset[str]


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The use of one counter set: `common` are the groups that all its devices name, or None if none names any."""

    common: Groups | None

    def admits(self, groups: Groups) -> bool:
        """Return whether a device with these groups may join.

        A device without groups may join only others without groups.
        """
        if not groups or self.common is None:
            return not groups and self.common is None
        return not self.common.isdisjoint(groups)

    def with_device(self, groups: Groups) -> GroupUse:
        """Return the use with one more device."""
        return self if self.common is None or not groups else GroupUse(self.common & groups)


def group_use_of(groups: Groups) -> GroupUse:
    """Return the use by a single device."""
    return GroupUse(groups or None)


def groups_of(device: DeviceRecord) -> Iterator[tuple[str, Groups]]:
    """Yield the counter sets that a device draws from, each with the groups that it names there."""
    for counter in device.wire.get("consumesCounters") or ():
        yield counter["counterSet"], frozenset(counter.get("compatibilityGroups") or ())


def group_uses_of(held: Iterable[DeviceRecord]) -> dict[str, GroupUse]:
    """Return the use of each counter set by the devices of one pool that are in use."""
    found: dict[str, GroupUse] = {}
    for device in held:
        for name, groups in groups_of(device):
            group_use = found.get(name)
            found[name] = group_use_of(groups) if group_use is None else group_use.with_device(groups)
    return found


# Counters: the amounts that partitions of one device share, and how much of them is left.

CounterName = tuple[str, str]  # counter set, counter


class Account:
    """The counters of one pool (or of all pools with one name), and the held devices that take from each.

    `available` never changes once it is computed.
    """

    __slots__ = ("available", "is_overdrawn", "takers")

    def __init__(self, available: dict[CounterName, Amount], takers: dict[CounterName, list[DeviceRecord]]) -> None:
        self.available = available
        self.takers = takers
        # Every check looks at all counters of the pool: one counter below zero refuses every device that uses counters.
        self.is_overdrawn = any(amount < 0 for amount in available.values())


class Accounts:
    """All accounts that have been opened, for all nodes."""

    def __init__(self, rules: AllocatorRules, held: ClaimHoldings) -> None:
        self._rules = rules
        self._held = held
        self._open: dict[Hashable, Account] = {}
        self._group_uses: dict[PoolId, dict[str, GroupUse]] = {}

    def forget(self) -> None:
        """Discard all accounts, because the devices that are held have changed."""
        self._open.clear()
        self._group_uses.clear()

    def key(self, pool: Pool, device: DeviceRecord) -> Hashable:
        """Return the key of the account from which a device takes."""
        match self._rules.counters_of:
            case "slice":
                return device.slice.name
            case "pool":
                return pool.id
            case _:
                return pool.id[1]

    def account(self, pool: Pool, device: DeviceRecord) -> Account:
        """Return the account of a device; the first pool that needs the account opens it."""
        key = self.key(pool, device)
        account = self._open.get(key)
        if account is None:
            if self._rules.counters_of == "slice":
                account = self._opened({one["name"]: one for one in device.slice.sets}, [device.slice])
            else:
                account = self._opened(dict(pool.sets), [*pool.slices, *pool.others])
            self._open[key] = account
        return account

    def group_uses(self, pool: Pool) -> dict[str, GroupUse]:
        """Return how the held devices of a pool use its counter sets, by the name of the set."""
        found = self._group_uses.get(pool.id)
        if found is None:
            devices = [device for record in (*pool.slices, *pool.others) for device in record.devices]
            found = self._group_uses[pool.id] = group_uses_of(device for device in devices if self._is_held(device.id))
        return found

    def _opened(self, sets: dict[str, dict[str, object]], slices: list[SliceRecord]) -> Account:
        available = {
            (name, counter): counter_value(value)
            for name, one in sets.items()
            for counter, value in (one.get("counters") or {}).items()  # type: ignore[attr-defined]
        }
        takers: dict[CounterName, list[DeviceRecord]] = {}
        for record in slices:
            for device in record.devices:
                if device.wire.get("consumesCounters") and self._is_held(device.id):
                    for counter, amount in summed_counter_amounts(device):
                        if counter in available:
                            available[counter] -= amount
                            takers.setdefault(counter, []).append(device)
        return Account(available, takers)

    def _is_held(self, device: DeviceId) -> bool:
        held = self._held
        if device in held.devices:
            return True
        return self._rules.shares_hold_counters and (device in held.shares or device in held.capacity)


def summed_counter_amounts(device: DeviceRecord) -> list[tuple[CounterName, Amount]]:
    """List what a device takes from each counter; amounts of a set that is named twice are added up."""
    taken: dict[CounterName, Amount] = {}
    for name, counters in device.counter_amounts:
        for counter, amount in counters:
            taken[name, counter] = taken.get((name, counter), 0) + amount
    return list(taken.items())


# Pods and nodes: whether a pod may go to a node at all, before devices are considered.

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def unsuitable_reason(pod: Wire, node: Wire, allocated: Sequence[ClaimWire] = ()) -> str:
    """Return why a pod can't go to a node; "" if it can. `allocated` are its claims that hold devices already."""
    wanted, spec = pod.get("spec") or {}, node.get("spec") or {}
    tolerations: Sequence[Wire] = wanted.get("tolerations") or ()
    if spec.get("unschedulable") and not _tolerated(_UNSCHEDULABLE, tolerations):
        return "the node is cordoned"
    name = node["metadata"]["name"]
    if wanted.get("nodeName") not in {None, "", name}:
        return f"the pod is bound to node {wanted['nodeName']}"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, tolerations):
            return f"node taint {taint['key']}:{taint['effect']} is not tolerated"
    labels = node["metadata"].get("labels") or {}
    for key, value in (wanted.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    affinity = ((wanted.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    try:
        if affinity is not None and not matches_selector(affinity, node):
            return "required node affinity does not match"
    except AllocatorError:
        return "required node affinity can't be parsed"
    return _why_not_with(allocated, node)


def _why_not_with(allocated: Sequence[ClaimWire], node: Wire) -> str:
    """Return why the devices that a pod's claims hold already can't be used on a node."""
    for claim in allocated:
        selector = claim["status"]["allocation"].get("nodeSelector")
        try:
            if selector is not None and not matches_selector(selector, node):
                return f"claim {claim_name(claim)} holds devices that this node does not reach"
        except AllocatorError:
            return f"the node selector of claim {claim_name(claim)} can't be parsed"
    return ""


def _tolerated(taint: Wire, tolerations: Sequence[Wire]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Wire, taint: Wire) -> bool:
    """Return whether a toleration covers a node taint.

    Source: Kubernetes core/v1 Toleration.ToleratesTaint.
    """
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("key") not in {None, "", taint["key"]}:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return (toleration.get("value") or "") == (taint.get("value") or "")


# Taints: whether a device's taints prevent its allocation to a request.

_HARMFUL = {"NoSchedule", "NoExecute"}


def blocking_taint(taints: Sequence[Wire], tolerations: Sequence[Wire], *, only_harmful: bool = True) -> Wire | None:
    """Return the first taint that prevents allocation, or None if there is none."""
    for taint in taints:
        if only_harmful and taint.get("effect") not in _HARMFUL:
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def tolerates(toleration: Wire, taint: Wire) -> bool:
    """Return whether one toleration covers one taint."""
    effect = toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    key = toleration.get("key")
    if key and key != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Exists")


def taint_text(taint: Wire) -> str:
    """Return a taint as people write it, key=value:effect, and the time at which it was added, if that is known."""
    value = f"={taint['value']}" if taint.get("value") else ""
    since = f" since {taint['timeAdded']}" if taint.get("timeAdded") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}{since}"
