"""The funnel: what becomes of a node's devices on the way to one request.

In: a request, and a node's devices. Out: a `Funnel`: for each stage, how many devices are left and why the others are
not. Each device is lost once, at the first stage that refuses it. Constraints and competition between requests concern
several devices at once, so the verdict is the allocator's outcome, not the funnel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.allocation.allocator import PodAllocator
from dra_driver.allocation.attempt import Attempt, Context
from dra_driver.allocation.capacity import Amount, Replica, ReplicaShape, text_without_attributes
from dra_driver.allocation.constraints import ComparedValue, look_up
from dra_driver.allocation.pools import DeviceRecord, Pool, PoolId, PoolIndex, SliceRecord, reaches_device
from dra_driver.allocation.requests import Alternative, GroupVerdict, OwnedSelector
from dra_driver.allocation.rules import AllocatorError
from dra_driver.allocation.symmetry import PreparedNode
from dra_driver.allocation.usage import ClaimHoldings, blocking_taint, taint_text
from dra_driver.base.quantity import Quantity
from dra_driver.base.versions import OPTIONAL_NODE_OPERATIONS
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.grouping import key_maker, nearest_misses
from dra_driver.selectors.kubernetes import KubernetesSelector
from dra_driver.selectors.reads import Read, ReadSet

_MAX_TAKERS = 3  # holders of a counter that are named
STAGES = (
    "class selector",
    "request selectors",
    "node",
    "gate off",
    "taints",
    "in use",
    "counters",
    "capacity",
    "constraints",
)


@dataclass(frozen=True, slots=True)
class RefusedDevice:
    """One device that a stage refused, and the reason."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """One stage: its name from `STAGES`, the number of devices left after it, and the devices that it refused."""

    name: str
    left: int
    lost: tuple[RefusedDevice, ...]


@dataclass(frozen=True, slots=True)
class Funnel:
    """One request (or alternative) on one node. `wants` is None for "all"; `errors` are failed selectors."""

    claim: str
    request: str
    wants: int | None
    devices: int
    stages: tuple[FunnelStage, ...]
    fits: int
    errors: tuple[RefusedDevice, ...]

    @property
    def is_short(self) -> bool:
        """Whether the request can't be met even if it were the only one."""
        return self.fits < max(self.wants or 1, 1) or (self.wants is None and self.blocked_of_all > 0)

    @property
    def blocked_of_all(self) -> int:
        """The number of devices that "all" means but that are not available; "all" needs every one of them."""
        late = STAGES[3:]
        return sum(len(stage.lost) for stage in self.stages if stage.name in late)

    @property
    def bottleneck(self) -> FunnelStage | None:
        """The stage at which too few devices were left, or None if enough were left at the end."""
        wanted = max(self.wants or 1, 1)
        if self.wants is None and self.blocked_of_all:
            return next(stage for stage in self.stages if stage.name in STAGES[3:] and stage.lost)
        return next((stage for stage in self.stages if stage.left < wanted and stage.lost), None)


def funnels_on(context: Context, pools: Sequence[Pool], node: Wire) -> tuple[Funnel, ...]:
    """Follow a node's devices for every valid request and alternative of a pod."""
    prepared = PreparedNode(context, pools, node)
    attempt = Attempt(context, pools, node)
    return tuple(funnel(context, prepared, attempt, alternative) for alternative in context.plan.alternatives)


def funnel(context: Context, prepared: PreparedNode, attempt: Attempt, alternative: Alternative) -> Funnel:
    """Follow a node's devices through all stages. `attempt` must be empty: no device of this pod is placed."""
    lost: dict[str, list[RefusedDevice]] = {name: [] for name in STAGES}
    errors: list[RefusedDevice] = []
    refused_by: dict[OwnedSelector, list[tuple[DeviceRecord, GroupVerdict]]] = {}
    left: list[DeviceRecord] = []
    for device in prepared.devices:
        refusal = _refusal(context, prepared, attempt, alternative, device)
        if refusal is None:
            left.append(device)
        elif isinstance(refusal, GroupVerdict):
            assert refusal.refused_by is not None  # noqa: S101
            refused_by.setdefault(refusal.refused_by, []).append((device, refusal))
        elif refusal[0] == "error":
            errors.append(RefusedDevice(_name(device), refusal[1]))
        else:
            lost[refusal[0]].append(RefusedDevice(_name(device), refusal[1]))
    for selector, devices in refused_by.items():
        lost["class selector" if selector.is_of_class else "request selectors"] += _selector_losses(selector, devices)
    wants = None if alternative.is_all else alternative.count
    if alternative.is_all:
        lost["counters"] += _overlaps(attempt, left)
    for name, reason in _constraint_losses(context, attempt, alternative, left, wants):
        lost["constraints"].append(RefusedDevice(name, reason))
    stages = []
    remaining = len(prepared.devices) - len(errors)
    for name in STAGES:
        remaining -= len(lost[name])
        stages.append(FunnelStage(name, remaining, tuple(lost[name])))
    claim = context.plan.claims[alternative.claim].name
    return Funnel(claim, alternative.full_name, wants, len(prepared.devices), tuple(stages), remaining, tuple(errors))


def _refusal(
    context: Context, prepared: PreparedNode, attempt: Attempt, alternative: Alternative, device: DeviceRecord
) -> tuple[str, str] | GroupVerdict | None:
    """Return the selectors' refusal of a device, or another stage with its reason; None if all stages accept it."""
    features = context.features
    group = alternative.matcher.group_verdict(device)
    if isinstance(group.verdict, AllocatorError):
        return "error", group.verdict.text
    if not group.verdict:
        return group
    if device.slice.is_per_device and not reaches_device(device.wire, prepared.node):
        return "node", "the device is for other nodes"
    if device.wire.get("bindingConditions") and not features.binding_conditions:
        return "gate off", "it has binding conditions, and DRADeviceBindingConditions is off"
    if device.wire.get("consumesCounters") and not features.partitionable:
        return "gate off", "it consumes counters, and DRAPartitionableDevices is off"
    if not attempt.is_prepared_here(device):
        lack = "the node's kubelet does not declare" if features.optional_operations else "the scheduler does not have"
        return "node", f"its slice has skipNodeOperations, and {lack} {OPTIONAL_NODE_OPERATIONS}"
    if features.taints:
        taint = blocking_taint(
            device.wire.get("taints") or (), alternative.tolerations, only_harmful=context.rules.only_harmful_taints
        )
        if taint is not None:
            return "taints", f"taint {taint_text(taint)} is not tolerated"
    holder = context.held.devices.get(device.id)
    if holder is not None and not alternative.is_admin:
        return "in use", f"held by {holder}"
    reason = _counter_reason(attempt, device)
    if reason:
        return "counters", reason
    reason = _capacity_reason(context, attempt, alternative, device)
    return ("capacity", reason) if reason else None


def _counter_reason(attempt: Attempt, device: DeviceRecord) -> str:
    counter_amounts = attempt.known.facts(device).counter_amounts
    if not counter_amounts or device.id in attempt.context.held.capacity:
        return ""
    for place, groups in attempt.known.facts(device).groups:
        group_use = attempt.group_use(device, place)
        if group_use is not None and not group_use.admits(groups):
            own, theirs = (", ".join(sorted(one or ())) or "none" for one in (groups, group_use.common))
            return f"compatibility groups of {place[1]}: {own}, but what is held there has {theirs}"
    account = attempt.known.account(device)
    for (name, counter), amount in counter_amounts:
        available = account.available.get((name, counter))
        if available is not None and amount > available:
            needed, left = _amount_text(counter, amount), _amount_text(counter, max(available, 0))
            taken = _takers_text(attempt.context.held, account.takers.get((name, counter), ()))
            return f"{counter} of {name}: needs {needed}, {left} left{taken}"
    return "allocated devices already overdraw a counter of this pool" if account.is_overdrawn else ""


def _takers_text(held: ClaimHoldings, devices: Sequence[DeviceRecord]) -> str:
    """Return which claims hold the devices that take from a counter, and the profile, else the name, of these."""
    texts = []
    for device in devices:
        holders = [held.devices[device.id]] if device.id in held.devices else held.shares.get(device.id, [])
        profile = ((device.wire.get("attributes") or {}).get("profile") or {}).get("string")
        texts += [f"{holder} holds {profile or device.id[2]} on it" for holder in holders]
    more = f" and {len(texts) - _MAX_TAKERS} more" if len(texts) > _MAX_TAKERS else ""
    return f": {', '.join(texts[:_MAX_TAKERS])}{more}" if texts else ""


def _overlaps(attempt: Attempt, devices: Sequence[DeviceRecord]) -> Iterator[RefusedDevice]:
    """Yield the devices whose counters are used up by those before them; a request for all of them never fits."""
    needed: dict[tuple[PoolId, str, str], Amount] = {}
    for device in devices:
        available = attempt.known.account(device).available
        for (name, counter), amount in attempt.known.facts(device).counter_amounts:
            if (left := available.get((name, counter))) is None:
                continue
            place = (device.slice.pool_id, name, counter)
            needed[place] = needed[place] + amount if place in needed else amount
            if needed[place] > left:
                text = (
                    f"{counter} of {name}: {_amount_text(counter, left)} left, too few for all matching devices at once"
                )
                yield RefusedDevice(_name(device), f"{text}; a selector has to leave out those that contain others")
                break


def _capacity_reason(context: Context, attempt: Attempt, alternative: Alternative, device: DeviceRecord) -> str:
    if not context.features.consumable_capacity or attempt.has_room(alternative, device):
        return ""
    needs = attempt.known.needs(alternative, device)
    if needs is None:
        known = {capacity.name for capacity in device.capacities}
        missing = sorted(set(alternative.asked) - known)
        return f"it has no capacity {missing[0]}" if missing else "its request policy does not allow the amount"
    held = context.held.capacity.get(device.id, {})
    for capacity in device.capacities:
        free = capacity.total - held.get(capacity.name, 0)
        if needs[capacity.name].amount > free:
            holders = ", ".join(dict.fromkeys(context.held.shares.get(device.id, ())))
            by = f" (held by {holders})" if holders else ""
            amounts = [_amount_text(capacity.name, one) for one in (needs[capacity.name].amount, free, capacity.total)]
            return f"{capacity.name}: takes {amounts[0]}, {amounts[1]} of {amounts[2]} left{by}"
    return "its capacity is taken"


def _amount_text(name: str, amount: Amount) -> str:
    """Return an amount of a counter or capacity as text; memory is written as in all other output."""
    is_memory = name.rpartition("/")[2].startswith("memory") and amount == int(amount)
    return Quantity.of(int(amount), binary=True).readable if is_memory else str(amount)


def _constraint_losses(
    context: Context, attempt: Attempt, alternative: Alternative, left: Sequence[DeviceRecord], wants: int | None
) -> Iterator[tuple[str, str]]:
    """Find devices that can't meet a constraint: they lack the attribute, or too few devices have the same value."""
    gone: set[DeviceRecord] = set()
    for wire in context.plan.claims[alternative.claim].constraint_wires:
        names = frozenset(wire.get("requests") or ())
        if names and not names & {alternative.request_name, alternative.full_name}:
            continue
        attribute = wire.get("matchAttribute") or wire.get("distinctAttribute") or ""
        values: dict[DeviceRecord, ComparedValue | None] = {}
        for device in left:
            if device in gone:
                continue
            try:
                values[device] = attempt.known.attribute(device, attribute, alternative)
            except AllocatorError as error:
                gone.add(device)
                yield _name(device), error.text
        for device, value in values.items():
            if value is None:
                gone.add(device)
                yield _name(device), f"it has no attribute {attribute}"
            elif wire.get("matchAttribute") and wants is not None:
                agreeing = sum(other == value for other in values.values())
                if agreeing < wants:
                    gone.add(device)
                    yield _name(device), f"{agreeing} devices have its {attribute}, but {wants} are needed"


def _selector_losses(
    refusing: OwnedSelector, refused: Sequence[tuple[DeviceRecord, GroupVerdict]]
) -> list[RefusedDevice]:
    """Return why a selector refuses devices; if a single clause fails, the reason names it."""
    reasons = {}
    if isinstance(refusing.selector, KubernetesSelector):
        groups = {group: device for device, group in refused}
        views = [prepare_device(device.wire, device.driver) for device in groups.values()]
        ordered = list(groups)
        for miss in nearest_misses(refusing.selector, views):
            for position in miss.devices:
                reasons[ordered[position]] = miss.reason
    plain = f"does not match {refusing.expression}"
    return [RefusedDevice(_name(device), reasons.get(group, plain)) for device, group in refused]


def _name(device: DeviceRecord) -> str:
    return device.id[2]


# Kinds of nodes: groups of nodes that are equal for a pod's claims.

FEW_NODES = 24  # up to this many nodes are shown to a reader one by one
_PLAIN_SPEC = frozenset({"driver", "nodeName", "pool", "devices"})


class NodeKinds:
    """Computes the key of a node for one pod's claims.

    Args:
        asked: the claims, with the state of the cluster.
        owners: the owner of each pool (`owners_of`).
        names_holders: whether nodes differ if different claims hold their devices; if not, only which devices are held
            counts.
        like: another instance for the same slices; its results about devices are reused if it reads the same of them.
    """

    def __init__(
        self, asked: PodAllocator, owners: dict[str, str], *, names_holders: bool, like: NodeKinds | None = None
    ) -> None:
        self._asked = asked
        self._owners = owners
        self._names_holders = names_holders
        self.reads, self._compared = read_by(asked)
        self._makers: dict[str, Callable[[DeviceWire], Hashable]] = {}
        self._plain: dict[int, bool] = {}  # by shape
        self.looks: dict[int, Hashable] = {}  # by the list of devices
        if like is not None and like.reads == self.reads:
            self.looks = like.looks
        self._same: dict[Hashable, Hashable] = {}

    def key(self, node: Wire) -> Hashable:
        """Return the key of a node."""
        try:
            pools = self._asked.pools(node)
        except AllocatorError as refusal:
            return refusal.category, refusal.text
        name = node["metadata"]["name"]
        own = [self._owners.get(pool.id[1]) == name for pool in pools]
        names: dict[str, int] = {}
        keys: list[Hashable] = []
        for pool, is_own in zip(pools, own, strict=True):
            place = names.setdefault(pool.id[1], len(names))
            keys.append((place, self._own(pool, node) if is_own else _shared(pool, node)))
        if self._asked.allocator.index.skips_nodes:
            keys.append(self._asked.context.may_skip_operations(node))
        if self._compared and not (all(own) and all(_is_replica(slice_) for pool in pools for slice_ in pool.slices)):
            keys.append(self._pattern(pools))
        return tuple(keys)

    def _own(self, pool: Pool, node: Wire) -> Hashable:
        held = self._asked.allocator.held
        taken = _taken(held, pool.id, names=self._names_holders) if pool.id in held.by_pool else ()
        slices = tuple(self._slice(record, node) for record in pool.slices)
        others = tuple(self._slice(record, node) for record in pool.others)
        sets = repr(pool.sets) if pool.sets else ""
        return pool.id[0], pool.incomplete, pool.invalid, pool.seen, pool.has_binding, slices, others, sets, taken

    def _slice(self, record: SliceRecord, node: Wire) -> Hashable:
        spec = record.spec
        more = "" if spec.keys() <= _PLAIN_SPEC else repr([(k, v) for k, v in spec.items() if k not in _PLAIN_SPEC])
        reach = _reach(record, node) if record.is_per_device else ()
        return record.generation, record.count, more, reach, self._devices(record)

    def _devices(self, record: SliceRecord) -> Hashable:
        wires = record.wires
        if isinstance(wires, Replica) and not self._varies(wires.shape):
            wires = wires.shape.wires
        known = self.looks.get(id(wires))
        if known is None:
            make = self._makers.get(record.driver)
            if make is None:
                make = self._makers[record.driver] = key_maker(self.reads, record.driver)
            look = tuple([(wire["name"], make(wire), text_without_attributes(wire)) for wire in wires])
            known = self.looks[id(wires)] = self._same.setdefault(look, look)
        return known

    def _varies(self, shape: ReplicaShape) -> bool:
        known = self._plain.get(id(shape))
        if known is None:
            known = self._plain[id(shape)] = shape.varies_in(self.reads.reads)
        return known

    def _pattern(self, pools: Sequence[Pool]) -> Hashable:
        """Return which devices have equal values in the attributes that constraints compare."""
        pattern: list[Hashable] = []
        for attribute in self._compared:
            numbers: dict[ComparedValue, int] = {}
            for record in (record for pool in pools for record in pool.slices):
                for wire in self._comparable(record, attribute):
                    value = look_up(wire, record.driver, attribute)
                    number = None if value is None else (value[0], numbers.setdefault(value, len(numbers)))
                    pattern.append(number)
        return tuple(pattern)

    def _comparable(self, record: SliceRecord, attribute: str) -> Sequence[DeviceWire]:
        wires = record.wires
        if isinstance(wires, Replica) and attribute not in wires.shape.varying:
            return wires.shape.wires
        return wires


def owners_of(index: PoolIndex) -> dict[str, str]:
    """Return the owner of each pool: a node's name, or "" if the pool's or a slice's name occurs elsewhere too."""
    owners: dict[str, str] = {}
    slices = Counter(record.name for record in index.records)
    for record in index.records:
        name = record.pool_id[1]
        node = str(record.spec.get("nodeName") or "") if slices[record.name] == 1 else ""
        if owners.setdefault(name, node) != node:
            owners[name] = ""
    return owners


def read_by(asked: PodAllocator) -> tuple[ReadSet, tuple[str, ...]]:
    """Return what the selectors read of devices, and the attributes that constraints compare."""
    reads: set[Read] = set()
    for alternative in asked.plan.alternatives:
        reads |= alternative.matcher.reads.reads
        for name, derived in alternative.derived.items():
            domain, _, short = name.partition("/")  # others may have it without deriving it
            reads |= derived.reads | {Read("attributes", domain, short)}
    wires = (wire for claim in asked.plan.claims for wire in claim.constraint_wires)
    compared = {str(wire.get("matchAttribute") or wire.get("distinctAttribute") or "") for wire in wires}
    return ReadSet(frozenset(reads), frozenset()), tuple(sorted(compared))


def _is_replica(record: SliceRecord) -> bool:
    return isinstance(record.wires, Replica)


def _shared(pool: Pool, node: Wire) -> Hashable:
    records = [*pool.slices, *pool.others]
    reach = tuple(_reach(record, node) for record in pool.slices if record.is_per_device)
    places = tuple([record.order for record in records])
    return pool.id, pool.incomplete, pool.invalid, pool.seen, len(pool.slices), places, reach


def _reach(record: SliceRecord, node: Wire) -> Hashable:
    """Return which devices of a slice reach a node."""
    try:
        return tuple(reaches_device(wire, node) for wire in record.wires)
    except AllocatorError as refusal:
        return refusal.text, node["metadata"]["name"]


def _taken(held: ClaimHoldings, pool: PoolId, *, names: bool) -> Hashable:
    def who(holders: Iterable[str]) -> Hashable:
        return tuple(holders) if names else len(list(holders))

    return tuple(
        (
            device[2],
            who([held.devices[device]] if device in held.devices else ()),
            who(held.shares.get(device, ())),
            tuple(sorted(held.capacity[device].items())) if device in held.capacity else None,
        )
        for device in sorted(held.by_pool[pool])
    )
