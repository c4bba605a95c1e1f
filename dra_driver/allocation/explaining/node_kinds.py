"""Kinds of nodes: groups of nodes that are equal for a pod's claims.

In: a pod's claims, and one node at a time. Out: a key per node. Nodes with equal keys get equal outcomes, except for
the names of the nodes and of their own pools, so only one of them is judged.

A pool is a node's own if nothing else in the cluster has its name. Its part of the key holds everything that the
allocator may read, and who holds its devices: the whole devices except their attributes, and of the attributes those
that selectors read and constraints compare. Any other pool, which several nodes may reach, is equal only to
itself. Values that constraints compare may differ from node to node, if the same devices have equal values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

from dra_driver.allocation.allocator import PodAllocator
from dra_driver.allocation.constraints.constraint import ComparedValue, look_up
from dra_driver.allocation.outcome import AllocatorError
from dra_driver.allocation.pools.devices import PoolId, SliceRecord
from dra_driver.allocation.pools.held import ClaimHoldings
from dra_driver.allocation.pools.pools import Pool, PoolIndex
from dra_driver.allocation.pools.reach import reaches_device
from dra_driver.allocation.pools.replicas import Replica, ReplicaShape, text_without_attributes
from dra_driver.model.wire import DeviceWire, Wire
from dra_driver.selectors.grouping import key_maker
from dra_driver.selectors.readset import Read, ReadSet

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
        if self._compared and not (all(own) and all(_is_replica(one) for pool in pools for one in pool.slices)):
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
