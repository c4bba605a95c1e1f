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
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path

from dra_driver.documents.document import read_document
from dra_driver.documents.fields import Fields
from dra_driver.model.errors import InputError

VERSION = "prices/v1"
CAPACITIES = ("on-demand", "spot")
_MAX = Decimal(1_000_000)
_CURRENCY = r"[A-Z]{3}"


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
            and self.capacity in {"", node.capacity or CAPACITIES[0]}
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
    faults: list[str] = []
    fields = Fields(read_document(path), "", faults)
    version = fields.text("version")
    if version and version != VERSION:
        fields.fault("version", f"expected {VERSION}")
    currency = fields.optional_text("currency", pattern=_CURRENCY, what="three capital letters such as USD") or "USD"
    given = fields.any("prices")
    rows = given if isinstance(given, list) else []
    if not rows:
        fields.fault("prices", "expected a list of prices")
    table = PriceTable(currency, tuple(_row(Fields(row, f"prices[{at}]", faults)) for at, row in enumerate(rows)))
    fields.close()
    if faults:
        raise InputError("prices", f"{path}: " + "; ".join(faults[:20]), hint="the format: docs/cost.md")
    return table


def _row(fields: Fields) -> Price:
    model = fields.text("model")
    capacity = fields.optional_text("capacity") or ""
    if capacity and capacity not in CAPACITIES:
        fields.fault("capacity", f"expected one of {', '.join(CAPACITIES)}")
    made = Price(
        model,
        _amount(fields),
        profile=fields.optional_text("profile") or "",
        instance_type=fields.optional_text("instanceType") or "",
        capacity=capacity,
        source=fields.optional_text("source") or "",
    )
    fields.close()
    return made


def _amount(fields: Fields) -> Decimal:
    given = fields.any("perHour")
    text = str(given) if isinstance(given, (str, int)) and not isinstance(given, bool) else ""
    try:
        amount = Decimal(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None
    except InvalidOperation:
        amount = None
    if amount is None or amount > _MAX:
        fields.fault("perHour", 'expected an amount of money such as "2.99"')
        return Decimal(0)
    return amount
