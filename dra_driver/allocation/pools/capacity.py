"""Capacity: what a request consumes of a device, and whether that much is left.

In: a device's capacities with their request policies, a request's amounts. Out: amounts. All numbers are exact.

Source: Kubernetes consumable capacity (DRAConsumableCapacity): every capacity of a device is consumed, whether or not
the request names it; min, step and valid values round up (`ranges.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.allocation.pools.ranges import Arithmetic, CapacityError, Range
from dra_driver.model.quantity import Quantity
from dra_driver.model.wire import Wire

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
