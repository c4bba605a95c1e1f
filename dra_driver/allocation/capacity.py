"""Capacity: what a request consumes of a device, and whether that much is left.

In: a device's capacities with their request policies, a request's amounts. Out: amounts. All numbers are exact.

Source: Kubernetes consumable capacity (DRAConsumableCapacity): every capacity of a device is consumed, whether or not
the request names it; min, step and valid values round up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, overload

from dra_driver.base.quantity import Format, Quantity
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.selectors.reads import Read

# Ranges of capacity: how a request is rounded up to a step, in the integers of each Kubernetes version.

_MAX = 2**63 - 1
_THOUSAND = 1000


class CapacityError(Exception):
    """A request that ends the allocation: it does not fit an int64, or takes a negative amount."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a version calculates: whether an overflow is an error, and whether amounts may be thousandths."""

    checked: bool = False
    fractional: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The limits of a request policy's validRange."""

    minimum: Quantity | None
    maximum: Quantity | None
    step: Quantity | None

    def rounded(self, asked: Quantity, arithmetic: Arithmetic) -> Quantity | None:
        """Return what a request for at least the minimum takes, or None if it takes exactly the requested amount.

        Raises:
            CapacityError: The amount does not fit an int64.
        """
        if self.minimum is None or self.step is None:
            return None
        if self._counts_thousandths(arithmetic):
            return self._in_thousandths(asked)
        if arithmetic.checked and asked > Quantity(_MAX):
            raise CapacityError(f"{_UNWRITABLE}: request {asked} exceeds MaxInt64")
        start, step = whole_units(self.minimum), whole_units(self.step)
        if step == 0:
            return None
        count = _steps(_wrapped(whole_units(asked) - start), step)
        if arithmetic.checked and start >= 0 and count > (_MAX - start) // step:
            raise CapacityError(f"{_UNWRITABLE}: rounding request {asked} up to the next step passes MaxInt64")
        form = self.step.format if arithmetic.checked else Format.BINARY_SI
        return Quantity(_wrapped(start + step * count), 0, form)

    def excludes(self, taken: Quantity, arithmetic: Arithmetic) -> bool:
        """Return whether an amount is above the maximum or not on a step."""
        if self.maximum is not None and taken > self.maximum:
            return True
        if self.step is None:
            return False
        if self._counts_thousandths(arithmetic):
            amount, step = _thousandths(taken), _thousandths(self.step)
            start = _thousandths(self.minimum) if self.minimum is not None else 0
            return amount is None or not step or (amount - (start or 0)) % step != 0
        start = whole_units(self.minimum) if self.minimum is not None else 0
        step = whole_units(self.step)
        return step == 0 or _wrapped(whole_units(taken) - start) % step != 0

    def _counts_thousandths(self, arithmetic: Arithmetic) -> bool:
        limits = [limit for limit in (self.minimum, self.maximum, self.step) if limit is not None]
        if not arithmetic.fractional or any(_thousandths(limit) is None for limit in limits):
            return False
        return self.step is None or (_thousandths(self.step) or 0) >= 1

    def _in_thousandths(self, asked: Quantity) -> Quantity:
        assert self.minimum is not None  # noqa: S101
        assert self.step is not None  # noqa: S101
        amount = _thousandths(asked)
        if amount is None:
            raise CapacityError(f"{_UNWRITABLE}: request {asked} is not a representable milli value")
        start, step = _thousandths(self.minimum) or 0, _thousandths(self.step) or 1
        count = _steps(amount - start, step)
        if count > (_MAX - start) // step:
            raise CapacityError(f"{_UNWRITABLE}: rounding request {asked} up to the next step passes the milli range")
        total = start + step * count
        if total % _THOUSAND == 0:
            return Quantity(total // _THOUSAND, 0, self.step.format)
        return Quantity(total, -3, self.step.format)


_UNWRITABLE = "capacity request cannot be represented in the device's range arithmetic"


def whole_units(quantity: Quantity) -> int:
    """Return the whole units as resource.Quantity.Value does: fractions are rounded away from zero, and int64 wraps."""
    value = quantity.value
    if isinstance(value, int):
        if quantity.machine and not -_MAX - 1 <= value <= _MAX:
            return 0
        return _wrapped(value)
    whole = abs(value.numerator) // value.denominator + 1
    return _wrapped(whole if value > 0 else -whole)


def _thousandths(quantity: Quantity) -> int | None:
    """Return the amount in thousandths, or None if it is not a whole number of them or does not fit an int64."""
    amount = quantity.value * _THOUSAND
    if isinstance(amount, int) or amount.denominator == 1:
        whole = int(amount)
        return whole if -_MAX - 1 <= whole <= _MAX else None
    return None


def _steps(distance: int, step: int) -> int:
    """Divide as int64 does, towards zero, and add one if there is a remainder."""
    count = abs(distance) // abs(step) * (1 if (distance < 0) == (step < 0) else -1)
    return _wrapped(count + (distance % step != 0))


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


Amount = int | Fraction


@dataclass(frozen=True, slots=True)
class Consumption:
    """The amount of one capacity that a request takes. `text` is the amount as written, or "" if it was computed."""

    quantity: Quantity
    text: str

    @property
    def amount(self) -> Amount:
        """The exact amount."""
        return self.quantity.value


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity of a device, read once."""

    name: str
    total: Amount
    total_text: str
    default: str | None
    limits: Range | None
    values: tuple[str, ...]
    has_policy: bool

    @classmethod
    def read(cls, name: str, wire: Wire) -> Capacity:
        """Read a capacity from its wire form."""
        policy: Wire | None = wire.get("requestPolicy")
        limits: Wire | None = (policy or {}).get("validRange")
        return cls(
            name,
            parse(wire.get("value", "0")).value,
            _text(wire.get("value", "0")),
            _optional((policy or {}).get("default")),
            None if limits is None else Range(*(_limit(limits.get(key)) for key in ("min", "max", "step"))),
            tuple(_text(value) for value in (policy or {}).get("validValues") or ()),
            policy is not None,
        )

    def taken(self, asked: str | None, arithmetic: Arithmetic) -> Consumption:
        """Return what a request takes of this capacity, whether or not the policy allows it.

        Raises:
            CapacityError: The amount ends the allocation.
        """
        taken = self._rounded(asked, arithmetic)
        if arithmetic.checked and taken.quantity.sign < 0:
            raise CapacityError("capacity value is negative")
        return taken

    def _rounded(self, asked: str | None, arithmetic: Arithmetic) -> Consumption:
        if asked is None:
            return _consumption(self.default if self.default is not None else self.total_text)
        limits, quantity = self.limits, parse(asked)
        if limits is not None and limits.minimum is not None:
            if quantity < limits.minimum:
                return Consumption(limits.minimum, "")
            rounded = limits.rounded(quantity, arithmetic)
            return _consumption(asked) if rounded is None else Consumption(rounded, "")
        if self.values:
            return next((_consumption(v) for v in self.values if quantity <= parse(v)), _consumption(asked))
        return _consumption(asked)

    def violates(self, taken: Consumption, arithmetic: Arithmetic) -> bool:
        """Return whether the policy forbids an amount."""
        if not self.has_policy or (self.default is not None and taken.text == self.default):
            return False
        if self.limits is not None:
            return self.limits.excludes(taken.quantity, arithmetic)
        return bool(self.values) and all(taken.quantity != parse(value) for value in self.values)


def read_capacities(device: Wire) -> tuple[Capacity, ...]:
    """Read all capacities of a device."""
    return tuple(Capacity.read(name, wire) for name, wire in (device.get("capacity") or {}).items())


def consume(
    capacities: tuple[Capacity, ...], asked: Mapping[str, str], arithmetic: Arithmetic
) -> dict[str, Consumption] | None:
    """Return what a request takes of every capacity of a device, or None if the device can't provide the amounts.

    Raises:
        CapacityError: An amount ends the allocation.
    """
    known = {capacity.name for capacity in capacities}
    if any(name not in known for name in asked):
        return None
    taken = {}
    for capacity in capacities:
        try:
            taken[capacity.name] = capacity.taken(asked.get(capacity.name), arithmetic)
        except CapacityError as error:
            raise CapacityError(f'capacity "{capacity.name}": {error}') from error
    if any(capacity.violates(taken[capacity.name], arithmetic) for capacity in capacities):
        return None
    return taken


def parse(text: str) -> Quantity:
    """Read a quantity from a wire value.

    Raises:
        QuantityError: The value is not a quantity.
    """
    return Quantity.parse(_text(text).strip())


def _consumption(text: str) -> Consumption:
    return Consumption(parse(text), text)


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _limit(value: object) -> Quantity | None:
    return None if value is None else parse(_text(value))


# Replicas: the devices of similar nodes, stored only once.

_COMPARED_SEPARATELY = frozenset({"name", "attributes"})


@dataclass(frozen=True, slots=True)
class DeviceListFacts:
    """What the allocator must know about a list of devices before it reads any of them."""

    has_binding: bool
    consumes: bool
    has_groups: bool  # compatibilityGroups
    has_duplicates: bool


def facts_of(wires: Sequence[DeviceWire]) -> DeviceListFacts:
    """Collect the facts about a list of devices; the replicas of one shape share theirs."""
    if isinstance(wires, Replica):
        return wires.shape.facts
    has_binding = consumes = has_groups = False
    for device in wires:
        if "bindingConditions" in device or "consumesCounters" in device:
            has_binding = has_binding or device.get("bindingConditions") is not None
            taken = device.get("consumesCounters") or ()
            consumes = consumes or bool(taken)
            has_groups = has_groups or any(one.get("compatibilityGroups") for one in taken)
    has_duplicates = len({device["name"] for device in wires}) < len(wires)
    return DeviceListFacts(has_binding, consumes, has_groups, has_duplicates)


class ReplicaShape:
    """The devices of one driver on similar nodes.

    Args:
        driver: the name of the driver.
        wires: the devices of one of these nodes.
        varying: names of the attributes whose values differ between the nodes; nothing else may differ.
        make: returns the devices of a node, given its name.
        is_simulated: whether no slice was ever published with these devices.
    """

    __slots__ = ("_facts", "_made", "driver", "is_simulated", "make", "varying", "wires")

    def __init__(
        self,
        driver: str,
        wires: Sequence[DeviceWire],
        varying: Iterable[str],
        make: Callable[[str], Sequence[DeviceWire]],
        *,
        is_simulated: bool = True,
    ) -> None:
        self.driver = driver
        self.wires = wires
        self.varying = frozenset(name if "/" in name else f"{driver}/{name}" for name in varying)
        self.make = make
        self.is_simulated = is_simulated
        self._facts: DeviceListFacts | None = None
        self._made: tuple[str, Sequence[DeviceWire]] = ("", ())

    @property
    def facts(self) -> DeviceListFacts:
        """What the allocator must know about the devices of each of the nodes."""
        if self._facts is None:
            self._facts = facts_of(self.wires)
        return self._facts

    def on(self, node: str) -> Sequence[DeviceWire]:
        """Return the devices of one node; only those of the latest node are kept."""
        if self._made[0] != node:
            self._made = (node, self.make(node))
        return self._made[1]

    def varies_in(self, reads: Iterable[Read]) -> bool:
        """Return whether anything that is read differs from node to node."""
        return any(_touches(read, name) for read in reads if read.field == "attributes" for name in self.varying)


class Replica(Sequence[DeviceWire]):
    """The devices of one node that has a given shape."""

    __slots__ = ("node", "shape")

    def __init__(self, shape: ReplicaShape, node: str) -> None:
        self.shape = shape
        self.node = node

    def __len__(self) -> int:
        return len(self.shape.wires)

    @overload
    def __getitem__(self, index: int) -> DeviceWire: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DeviceWire]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.shape.on(self.node)[index]


def shared_wires(wires: Sequence[DeviceWire]) -> Sequence[DeviceWire]:
    """Return devices that differ from the given ones in values of attributes at most.

    Of a replica, they are those of its shape, so that no device is made.
    """
    return wires.shape.wires if isinstance(wires, Replica) else wires


def names_of(wires: Sequence[DeviceWire]) -> list[str]:
    """Return the names of devices; replicas have them in common, so none is made."""
    return [wire["name"] for wire in shared_wires(wires)]


def text_without_attributes(wire: DeviceWire) -> str:
    """Return everything in a device except its name and attributes as text, for comparison with other devices."""
    return repr([(key, value) for key, value in wire.items() if key not in _COMPARED_SEPARATELY])


def _touches(read: Read, name: str) -> bool:
    domain, _, short = name.partition("/")
    return read.domain in {None, domain} and read.name in {None, short}
