"""Pools: which devices a node can reach, and whether their pools are complete and valid.

In: all slices of the cluster, indexed once; then one node at a time. Out: that node's pools. Most nodes publish a pool
of their own, which is found by the node's name; nothing is decoded per node.

Source: Kubernetes structured allocator, GatherPools. The newest generation that the node sees wins; a pool is
complete if as many slices of it exist, anywhere, as its slices announce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.allocation.capacity import Amount, Capacity, facts_of, names_of, parse, read_capacities, shared_wires
from dra_driver.allocation.node_selector import matches_selector
from dra_driver.allocation.rules import AllocatorError, AllocatorRules, Category, Features
from dra_driver.base.versions import COMPATIBILITY_GROUPS
from dra_driver.base.wire import DeviceWire, SliceWire, Wire

# Slices and devices as the search sees them: references into the wire objects, read once for all nodes.

DeviceId = tuple[str, str, str]  # driver, pool, device
PoolId = tuple[str, str]  # driver, pool
CounterAmounts = tuple[tuple[str, tuple[tuple[str, Amount], ...]], ...]  # counter set → counters and their amounts


class DeviceRecord:
    """One device of one slice."""

    __slots__ = ("_capacities", "_counter_amounts", "driver", "id", "is_shared", "slice", "wire")

    def __init__(self, wire: DeviceWire, one: SliceRecord) -> None:
        self.wire = wire
        self.slice = one
        self.driver = one.driver
        self.id: DeviceId = (one.driver, one.pool_id[1], wire["name"])
        self.is_shared: bool = wire.get("allowMultipleAllocations") is True
        self._capacities: tuple[Capacity, ...] | None = None
        self._counter_amounts: CounterAmounts | None = None

    @property
    def capacities(self) -> tuple[Capacity, ...]:
        """The device's capacities with their policies."""
        if self._capacities is None:
            self._capacities = read_capacities(self.wire)
        return self._capacities

    @property
    def counter_amounts(self) -> CounterAmounts:
        """The amounts that the device takes from counter sets."""
        if self._counter_amounts is None:
            self._counter_amounts = tuple(
                (one["counterSet"], tuple((name, counter_value(c)) for name, c in (one.get("counters") or {}).items()))
                for one in self.wire.get("consumesCounters") or ()
            )
        return self._counter_amounts

    @property
    def node_scope(self) -> Wire:
        """The object that says which nodes reach the device: the device itself, or its slice."""
        return self.wire if self.slice.is_per_device else self.slice.spec


class SliceRecord:
    """One slice. `order` is its position in the input."""

    __slots__ = (
        "_made",
        "consumes",
        "count",
        "driver",
        "generation",
        "has_binding",
        "has_duplicates",
        "has_groups",
        "is_per_device",
        "name",
        "order",
        "pool_id",
        "sets",
        "skips_operations",
        "spec",
        "wires",
    )

    def __init__(self, wire: SliceWire, order: int) -> None:
        spec: dict[str, Any] = wire["spec"]
        pool = spec["pool"]
        self.spec = spec
        self.order = order
        self.name: str = wire["metadata"]["name"]
        self.driver: str = spec["driver"]
        self.pool_id: PoolId = (self.driver, pool["name"])
        self.generation: int = pool.get("generation") or 0
        self.count: int = pool.get("resourceSliceCount") or 0
        self.sets: Sequence[Wire] = spec.get("sharedCounters") or ()
        self.wires: Sequence[DeviceWire] = spec.get("devices") or ()
        self.is_per_device: bool = spec.get("perDeviceNodeSelection") is True
        self.skips_operations = bool(spec.get("skipNodeOperations"))
        facts = facts_of(self.wires)
        self.has_binding = facts.has_binding
        self.consumes = facts.consumes
        self.has_groups = facts.has_groups
        self.has_duplicates = facts.has_duplicates
        self._made: dict[int, DeviceRecord] = {}

    def device(self, index: int) -> DeviceRecord:
        """Return the device at a position; its record is made when it is first needed."""
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = DeviceRecord(self.wires[index], self)
        return made

    @property
    def devices(self) -> list[DeviceRecord]:
        """The devices, in the slice's order of preference."""
        return [self.device(index) for index in range(len(self.wires))]


def counter_value(counter: Wire) -> Amount:
    """Return the exact value of a counter."""
    return parse(counter.get("value", "0")).value


# Reach: which nodes can use the devices of a slice, or one device.


def reaches_device(scope: Wire, node: Wire) -> bool:
    """Return whether the nodeName, allNodes or nodeSelector of a slice or device lets it reach a node.

    Raises:
        AllocatorError: The node selector can't be parsed.
    """
    name = scope.get("nodeName")
    if name:
        return bool((node.get("metadata") or {}).get("name") == name)
    if scope.get("allNodes"):
        return True
    selector = scope.get("nodeSelector")
    return selector is not None and matches_selector(selector, node)


def reaches(record: SliceRecord, node: Wire) -> bool:
    """Return whether a slice, or any of its devices, is for a node. Raises: AllocatorError."""
    spec = record.spec
    if spec.get("allNodes") or spec.get("nodeSelector") is not None:
        return reaches_device(spec, node)
    return record.is_per_device and any(reaches_device(wire, node) for wire in record.wires)


def label_key(spec: Wire) -> tuple[str, Sequence[str]] | None:
    """Return (label, values) that a node must have for the slice's selector to match; the label "" means its name."""
    if spec.get("allNodes") or spec.get("nodeSelector") is None:
        return None
    terms = spec["nodeSelector"].get("nodeSelectorTerms") or []
    if len(terms) != 1:
        return None
    for requirement in terms[0].get("matchFields") or []:
        if requirement.get("operator") == "In" and requirement.get("key") == "metadata.name":
            return ("", requirement["values"]) if len(requirement.get("values") or ()) == 1 else None
    for requirement in terms[0].get("matchExpressions") or []:
        if requirement.get("operator") == "In" and requirement.get("values"):
            return requirement["key"], requirement["values"]
    return None


class Pool:
    """One pool as one node sees it. `others` are current slices that do not reach the node."""

    __slots__ = ("has_binding", "id", "incomplete", "invalid", "others", "seen", "sets", "slices")

    def __init__(self, pool_id: PoolId) -> None:
        self.id = pool_id
        self.slices: Sequence[SliceRecord] = ()
        self.others: Sequence[SliceRecord] = ()
        self.sets: Mapping[str, Wire] = {}
        self.incomplete = False
        self.invalid = ""  # the reason
        self.has_binding = False
        self.seen = (0, 0)  # the number of slices that exist, and the number that should

    @property
    def devices(self) -> list[DeviceRecord]:
        """The devices that reach the node, in order of preference; empty if the pool can't be used."""
        return [] if self.invalid else [device for record in self.slices for device in record.devices]

    @property
    def name(self) -> str:
        """The pool's name as messages write it."""
        return f"{self.id[0]}/{self.id[1]}"


class PoolIndex:
    """All slices, indexed by the nodes that they reach."""

    def __init__(self, slices: Sequence[SliceWire], rules: AllocatorRules, features: Features) -> None:
        self._rules = rules
        self._features = features
        self.records = [SliceRecord(wire, order) for order, wire in enumerate(slices)]
        self.by_pool: dict[PoolId, list[SliceRecord]] = {}
        self._by_node: dict[str, list[SliceRecord]] = {}
        self._anywhere: list[SliceRecord] = []
        self._by_label: dict[str, dict[str, list[SliceRecord]]] = {}
        self._counter_slices: dict[PoolId, list[SliceRecord]] = {}
        self._views: dict[tuple[int, ...], Pool | None] = {}
        self.skips_nodes = any(record.skips_operations for record in self.records)
        self.has_groups = rules.knows(COMPATIBILITY_GROUPS) and any(record.has_groups for record in self.records)
        self.hidden: set[PoolId] = set()
        for record in self.records:
            if self.has_groups and record.has_groups and not features.compatibility_groups:
                self.hidden.add(record.pool_id)  # the slice is treated as absent, so that its pool is incomplete
                continue
            self.by_pool.setdefault(record.pool_id, []).append(record)
            self._add(record)
        self._counter_pools = [
            view for s in self._counter_slices.values() if (view := self._view(s)) and not _is_sound(view)
        ]

    def _add(self, record: SliceRecord) -> None:
        spec, rules = record.spec, self._rules
        if not self._features.partitionable and (
            spec.get("perDeviceNodeSelection") is not None or (rules.hides_counter_slices and record.sets)
        ):
            return
        node = spec.get("nodeName")
        if record.sets and rules.joins_counter_slices and not rules.counter_slices_stay:
            self._counter_slices.setdefault(record.pool_id, []).append(record)
        elif node:
            self._by_node.setdefault(node, []).append(record)
        elif key := label_key(spec):
            for value in key[1]:
                self._by_label.setdefault(key[0], {}).setdefault(value, []).append(record)
        else:
            self._anywhere.append(record)

    def pools(self, node: Wire) -> list[Pool]:
        """Return the pools of a node, in the order in which they are searched.

        Raises:
            AllocatorError: A node selector can't be parsed.
        """
        metadata = node.get("metadata") or {}
        name = metadata.get("name") or ""
        near = self._by_node.get(name, [])
        if not (self._anywhere or self._by_label or self._counter_slices):
            if len(near) == 1:
                view = self._view(near)
                return [] if view is None else [view]
            return self._arrange(near)
        labels: Wire = metadata.get("labels") or {}
        found = [
            record
            for key, values in self._by_label.items()
            for record in values.get(name if key == "" else labels.get(key, ""), ())
            if matches_selector(record.spec["nodeSelector"], node)
        ]
        found += [record for record in self._anywhere if reaches(record, node)]
        return self._arrange([*near, *found])

    def _arrange(self, slices: Sequence[SliceRecord]) -> list[Pool]:
        groups: dict[PoolId, list[SliceRecord]] = {}
        for record in slices:
            groups.setdefault(record.pool_id, []).append(record)
        pools = []
        for pool_id, members in groups.items():
            whole = [*members, *self._counter_slices[pool_id]] if pool_id in self._counter_slices else members
            view = self._view(whole)
            if view is not None:
                pools.append(view)
        pools += [view for view in self._counter_pools if view.id not in groups]
        if len(pools) > 1:
            last = self._rules.sorted_pools or self._rules.binding_slices_last
            pools.sort(key=lambda p: (last and p.has_binding, p.id))
        return pools

    def _view(self, slices: list[SliceRecord]) -> Pool | None:
        if len(slices) == 1 and (only := slices[0]).count == 1 and not only.sets:
            return self._single_slice_pool(only)
        key = tuple(sorted([s.order for s in slices]))
        if key not in self._views:
            self._views[key] = self._build([self.records[order] for order in key])
        return self._views[key]

    def _single_slice_pool(self, only: SliceRecord) -> Pool:
        """Return the pool of a node that publishes a single slice, as most nodes do."""
        pool = Pool(only.pool_id)
        pool.slices = (only,)
        pool.seen = (1, 1)
        pool.has_binding = only.has_binding
        if only.has_duplicates:
            pool.invalid = _duplicate_name(pool.slices)
        elif only.consumes and self._features.partitionable and self._rules.joins_counter_slices:
            pool.invalid = _missing_counter(only, {})
        if pool.invalid:
            pool.has_binding = False
        return pool

    def _build(self, slices: list[SliceRecord]) -> Pool | None:
        """Build one pool from those of its slices that a node sees; return None if newer slices exist elsewhere."""
        rules = self._rules
        if rules.binding_slices_last:
            slices.sort(key=lambda s: s.has_binding and not (s.sets and rules.joins_counter_slices))
        newest = max([s.generation for s in slices])
        current = [s for s in slices if s.generation == newest]
        pool = Pool(slices[0].pool_id)
        whole = current
        count = self._announced(current)
        if len(current) != count and not rules.looks_elsewhere:
            pool.incomplete = True
        elif len(current) != count:
            everywhere = self.by_pool[pool.id]
            if any(s.generation > newest for s in everywhere):
                return None
            whole = [s for s in everywhere if s.generation == newest]
            pool.incomplete = len(whole) != count
        pool.seen = (len(whole), count)
        if rules.sorted_pools:
            current.sort(key=lambda s: s.name)
        if pool.incomplete and rules.joins_counter_slices:
            return pool
        self._fill(pool, current, whole)
        return pool

    def _fill(self, pool: Pool, current: list[SliceRecord], whole: list[SliceRecord]) -> None:
        counted = self._features.partitionable and self._rules.joins_counter_slices
        having = [s for s in current if not s.sets] if counted else current
        pool.slices = having
        pool.has_binding = any(s.has_binding for s in having)
        reason = _duplicate_name(having)
        if counted and not reason:
            pool.others = [] if whole is current else _without(whole, current)
            reason = self._count(pool, whole if self._rules.counter_slices_stay else current)
        if reason:
            pool.invalid = reason
            pool.has_binding = False
            return

    def _count(self, pool: Pool, current: Sequence[SliceRecord]) -> str:
        """Collect the counter sets; return what is wrong with them or with devices that refer to them, or ""."""
        sets: dict[str, Wire] = {}
        for one in (one for s in current for one in s.sets):
            if one["name"] in sets:
                return f"duplicate counter set name {one['name']}"
            sets[one["name"]] = one
        pool.sets = sets
        checked = (s for s in (*current, *pool.others) if not (s.sets and self._rules.counter_slices_stay))
        return next((reason for s in checked if (reason := _missing_counter(s, sets))), "")

    def _announced(self, current: Sequence[SliceRecord]) -> int:
        """Return how many slices the pool says it has, which is what the slice says that is read first."""
        if not self._rules.sorted_pools:
            return current[0].count
        stay = self._rules.counter_slices_stay
        own = (s for s in current if s.spec.get("nodeName") and (stay or not s.sets))
        return next(own, current[0]).count


def _is_sound(pool: Pool) -> bool:
    return not pool.incomplete and not pool.invalid


def _without(whole: list[SliceRecord], current: list[SliceRecord]) -> list[SliceRecord]:
    names = {s.name for s in current}
    return [s for s in whole if s.name not in names]


def _duplicate_name(slices: Sequence[SliceRecord]) -> str:
    if len(slices) == 1 and not slices[0].has_duplicates:
        return ""
    seen: set[str] = set()
    for name in (name for record in slices for name in names_of(record.wires)):
        if name in seen:
            return f"duplicate device name {name}"
        seen.add(name)
    return ""


def _missing_counter(record: SliceRecord, sets: Mapping[str, Wire]) -> str:
    for wire in shared_wires(record.wires):
        for consumed in wire.get("consumesCounters") or ():
            held = sets.get(consumed["counterSet"])
            if held is None:
                return f"counter set {consumed['counterSet']} not found"
            counters = held.get("counters") or {}
            for name in consumed.get("counters") or {}:
                if name not in counters:
                    return f"counter {name} not found in counter set {consumed['counterSet']}"
    return ""


def invalid_pool(pools: Sequence[Pool]) -> AllocatorError | None:
    """Return the error of an attempt that found nothing while some pool is invalid."""
    if any(pool.invalid for pool in pools):
        return AllocatorError(Category.INVALID_POOL, "invalid resource pools were encountered")
    return None
