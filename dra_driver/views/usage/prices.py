"""Prices: what an hour of a GPU costs, from a table that the user writes.

In: a YAML file. Out: a price for a model, on an instance type, spot or on demand. The first row that matches counts. A
row with a profile is the price of such a partition; without one, a partition costs its fraction of the GPU's price.

    version: prices/v1
    currency: USD
    prices:
      - {model: "NVIDIA H100*", instanceType: p5.48xlarge, capacity: on-demand, perHour: "6.88", source: May}
      - {model: "*", perHour: "2"}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from dra_driver.documents.section import Section, Text, described, wrong
from dra_driver.documents.strict_file import read_strictly

_MAX = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """What the price of a node depends on: its instance type, and whether it is spot; "" if that is not known."""

    instance_type: str = ""
    capacity: str = ""


ANY_NODE = NodeKind()


@dataclass(frozen=True, slots=True)
class Price:
    """One row of the table. Empty texts match everything; the model may have wildcards."""

    model: str
    per_hour: Decimal
    profile: str = ""
    instance_type: str = ""
    capacity: str = ""
    source: str = ""

    def is_for(self, model: str, profile: str, node: NodeKind) -> bool:
        """Return whether the row is the price of a device of a model and profile on such a node."""
        return (
            fnmatchcase(model, self.model)
            and self.profile in {"", profile}
            and self.instance_type in {"", node.instance_type}
            and self.capacity in {"", node.capacity or "on-demand"}
        )


@dataclass(frozen=True, slots=True)
class PriceTable:
    """All prices, in one currency."""

    currency: str = "USD"
    rows: tuple[Price, ...] = ()

    def per_device_hour(self, model: str, profile: str, part: float, node: NodeKind = ANY_NODE) -> float | None:
        """Return what a device costs in an hour, or None if there is no price; `part` is its fraction of a GPU."""
        row = next((one for one in self.rows if one.is_for(model, profile, node)), None)
        if row is None:
            return None
        return float(row.per_hour) * (1.0 if row.profile else part)


def read_prices(path: Path) -> PriceTable:
    """Read a price table. Raises: InputError("input.prices") with every fault at once; InputError if unreadable."""
    table = read_strictly(path, _PriceFile, "prices", "price table", hint="the format: docs/cost.md")
    return PriceTable(table.currency, tuple(Price(**dict(row)) for row in table.prices))


def _amount(value: object) -> Decimal:
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or Decimal(text) > _MAX:
        raise wrong(f'expected an amount of money such as "2.99", got {described(value)}')
    return Decimal(text)


class _PriceSection(Section):
    model: Text = Field(description="a model's name, which may have wildcards")
    per_hour: Annotated[Decimal, PlainValidator(_amount)] = Field(description='an amount of money such as "2.99"')
    profile: Text = ""
    instance_type: Text = ""
    capacity: Literal["", "on-demand", "spot"] = Field("", description="on-demand or spot")
    source: Text = ""


class _PriceFile(Section):
    version: Literal["prices/v1"]
    currency: str = Field("USD", pattern="^[A-Z]{3}$", description="three capital letters such as USD")
    prices: list[_PriceSection] = Field(min_length=1, description="a list of prices")
