"""Capacity: what a request consumes of a device, and whether that much is left.

In: a device's capacities with their request policies, a request's amounts. Out: amounts. Everything is exact.

The rule: Kubernetes consumable capacity (DRAConsumableCapacity): every capacity of a device is consumed, asked or not;
min, step and valid values round up. Step arithmetic is on whole units before 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.model.quantity import Format, Quantity
from dra_driver.model.wire import Wire

Amount = int | Fraction


@dataclass(frozen=True, slots=True)
class Consumption:
    """The amount of one capacity that a request takes. `text` is what it was written as, "" if computed."""

    quantity: Quantity
    text: str

    @property
    def amount(self) -> Amount:
        """The exact value."""
        return self.quantity.value


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity of a device, read once."""

    name: str
    total: Amount
    total_text: str
    default: str | None
    minimum: str | None
    maximum: str | None
    step: str | None
    has_range: bool
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
            _optional((limits or {}).get("min")),
            _optional((limits or {}).get("max")),
            _optional((limits or {}).get("step")),
            limits is not None,
            tuple(_text(value) for value in (policy or {}).get("validValues") or ()),
            policy is not None,
        )

    def consume(self, asked: str | None) -> Consumption | None:
        """Give what a request consumes of this capacity, None if the policy does not allow it."""
        taken = self._rounded(asked)
        return None if self._violates(taken) else taken

    def _rounded(self, asked: str | None) -> Consumption:
        if asked is None:
            return _consumption(self.default if self.default is not None else self.total_text)
        if self.minimum is not None:
            return self._in_range(asked, self.minimum)
        if self.values:
            quantity = parse(asked)
            return next((_consumption(v) for v in self.values if quantity <= parse(v)), _consumption(asked))
        return _consumption(asked)

    def _in_range(self, asked: str, minimum: str) -> Consumption:
        least, quantity = parse(minimum), parse(asked)
        if quantity < least:
            return _consumption(minimum)
        if self.step is None:
            return _consumption(asked)
        start, step = _ceil(least), _ceil(parse(self.step))
        if step == 0:
            return _consumption(asked)
        count = -((start - _ceil(quantity)) // step)
        return Consumption(Quantity(start + step * count, 0, Format.BINARY_SI), "")

    def _violates(self, taken: Consumption) -> bool:
        if not self.has_policy or (self.default is not None and taken.text == self.default):
            return False
        if self.has_range:
            if self.maximum is not None and taken.quantity > parse(self.maximum):
                return True
            if self.step is None:
                return False
            start = _ceil(parse(self.minimum)) if self.minimum is not None else 0
            step = _ceil(parse(self.step))
            return step == 0 or (_ceil(taken.quantity) - start) % step != 0
        return bool(self.values) and all(taken.quantity != parse(value) for value in self.values)


def read_capacities(device: Wire) -> tuple[Capacity, ...]:
    """Read all capacities of a device."""
    return tuple(Capacity.read(name, wire) for name, wire in (device.get("capacity") or {}).items())


def consume(capacities: tuple[Capacity, ...], asked: Mapping[str, str]) -> dict[str, Consumption] | None:
    """Give what a request takes of every capacity of a device; None where it asks for what can't be had."""
    known = {capacity.name for capacity in capacities}
    if any(name not in known for name in asked):
        return None
    taken = {}
    for capacity in capacities:
        one = capacity.consume(asked.get(capacity.name))
        if one is None:
            return None
        taken[capacity.name] = one
    return taken


def parse(text: str) -> Quantity:
    """Read a quantity from a wire value.

    Raises:
        QuantityError: It is none.
    """
    return Quantity.parse(_text(text).strip())


def _consumption(text: str) -> Consumption:
    return Consumption(parse(text), text)


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _ceil(quantity: Quantity) -> int:
    """Give the whole units, fractions rounded away from zero, as resource.Quantity.Value does."""
    value = quantity.value
    if isinstance(value, int):
        return value
    whole = abs(value.numerator) // value.denominator + 1
    return whole if value > 0 else -whole
