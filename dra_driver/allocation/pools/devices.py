"""Slices and devices as the search sees them: references into the wire objects, read once for all nodes.

In: ResourceSlices as wire dicts. Out: `SliceRecord`s, which make each `DeviceRecord` when it is first needed.

Source: Kubernetes API resource/v1 ResourceSlice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.allocation.pools.capacity import Amount, Capacity, parse, read_capacities
from dra_driver.allocation.pools.replicas import facts_of
from dra_driver.model.wire import DeviceWire, SliceWire, Wire

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
