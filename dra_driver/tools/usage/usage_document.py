"""The usage report: hours and money by claim, pod, namespace, class, node or pool, and what could be saved.

In: what was counted, prices, kinds of nodes. Out: `UsageReport`. Hours are device-hours; in money, a partition counts
as its fraction of a GPU. Rows by namespace and class come from totals, which include the shortest claims.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.tools.usage.advice import (
    WHOLE,
    IdleClaim,
    SizeAdvice,
    WhatIf,
    gpu_part_of,
    idle_hours,
    is_idle,
    size_for,
)
from dra_driver.tools.usage.from_agents import ANY_NODE, NodeKind, PriceTable
from dra_driver.tools.usage.usage_counts import ClaimUsage, NamespaceUsage, UnclaimedTime, UsageCounts
from dra_driver.tools.world.access import DocumentKind, OutputDocument, plain

NO_PODS = "(no pod was seen)"


class Grouping(enum.StrEnum):
    """What the rows of a report are grouped by."""

    CLAIM = "claim"
    POD = "pod"
    NAMESPACE = "namespace"
    CLASS = "class"
    NODE = "node"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The hours and the cost of one row.

    `unmeasured` are allocated hours whose use is not known. A cost is None if there is no price.
    """

    name: str
    allocated: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    unmeasured: float = 0.0
    unclaimed: float = 0.0
    gpu_hours: float = 0.0  # allocated and unclaimed; a partition counts as its fraction of a GPU
    cost: float | None = None  # of the allocated hours
    idle_cost: float | None = None
    unclaimed_cost: float | None = None

    def plus(self, other: UsageRow) -> UsageRow:
        """Return the sum of both rows, with the name of this one."""
        return UsageRow(
            self.name,
            self.allocated + other.allocated,
            self.busy + other.busy,
            self.idle + other.idle,
            self.unmeasured + other.unmeasured,
            self.unclaimed + other.unclaimed,
            self.gpu_hours + other.gpu_hours,
            _sum(self.cost, other.cost),
            _sum(self.idle_cost, other.idle_cost),
            _sum(self.unclaimed_cost, other.unclaimed_cost),
        )


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What GPUs were used for."""

    counted: UsageCounts
    by: Grouping
    currency: str
    rows: tuple[UsageRow, ...]
    total: UsageRow
    idle: tuple[IdleClaim, ...] = ()
    sizes: tuple[SizeAdvice, ...] = ()
    unpriced: tuple[str, ...] = ()  # models without a price
    notes: tuple[str, ...] = field(default=())
    what_if: WhatIf | None = None


class _Costing:
    """What devices cost on the nodes where they are; collects the models that have no price."""

    def __init__(self, counted: UsageCounts, prices: PriceTable, nodes: Mapping[str, NodeKind]) -> None:
        self._parts, self._prices, self._nodes = counted.parts, prices, nodes
        self.unpriced: set[str] = set()

    def part(self, model: str, profile: str) -> float:
        known = self._parts.get((model, profile))
        return known if known is not None and 0 < known <= 1 else gpu_part_of(model, profile)

    def per_hour(self, model: str, profile: str, node: str = "") -> float | None:
        kind = self._nodes.get(node, ANY_NODE)
        found = self._prices.per_device_hour(model, profile, self.part(model, profile), kind)
        if found is None:
            self.unpriced.add(model or "(an unknown model)")
        return found

    def row(self, name: str, one: ClaimUsage | NamespaceUsage, node: str = "") -> UsageRow:
        allocated, measured = one.allocated_s / 3600, min(one.measured_s, one.allocated_s) / 3600
        busy = min(one.busy_s / 3600, measured)
        price = self.per_hour(one.model, one.profile, node)
        return UsageRow(
            name, allocated, busy, measured - busy, allocated - measured,
            gpu_hours=allocated * self.part(one.model, one.profile),
            cost=None if price is None else allocated * price,
            idle_cost=None if price is None else (measured - busy) * price,
        )  # fmt: skip


def report_of(
    counted: UsageCounts, by: Grouping, prices: PriceTable, nodes: Mapping[str, NodeKind] | None = None
) -> UsageReport:
    """Return the report; `nodes` has the kind by which each node is priced. Rows with the highest cost come first."""
    costing = _Costing(counted, prices, nodes or {})
    used = list(_used(counted, by, costing))
    free = [_unclaimed(costing, one.node if by is Grouping.NODE else one.pool, one) for one in counted.unclaimed]
    has_free = by in {Grouping.NODE, Grouping.POOL}
    rows = _added([*used, *(free if has_free else ())])
    total = UsageRow("total")
    for row in [*used, *free]:
        total = total.plus(row)
    return UsageReport(
        counted,
        by,
        prices.currency,
        tuple(sorted(rows, key=lambda row: (-((row.cost or 0) + (row.unclaimed_cost or 0)), -row.allocated, row.name))),
        total,
        idle=tuple(_idle(counted, costing)),
        sizes=tuple(_sizes(counted, costing)),
        unpriced=tuple(sorted(costing.unpriced)) if prices.rows else (),
        notes=counted.notes,
    )


def _used(counted: UsageCounts, by: Grouping, costing: _Costing) -> Iterable[UsageRow]:
    if by in {Grouping.NAMESPACE, Grouping.CLASS} and counted.totals:
        for one in counted.totals:
            yield costing.row(one.namespace if by is Grouping.NAMESPACE else one.device_class, one)
        return
    name = _NAMES[by]
    for claim in counted.claims:
        yield costing.row(name(claim), claim, claim.node)


def _pod_name(claim: ClaimUsage) -> str:
    return f"{claim.namespace}/{', '.join(claim.pods)}" if claim.pods else f"{claim.namespace}/{NO_PODS}"


_NAMES: Mapping[Grouping, Callable[[ClaimUsage], str]] = {
    Grouping.CLAIM: lambda claim: f"{claim.namespace}/{claim.name}",
    Grouping.POD: _pod_name,
    Grouping.NAMESPACE: lambda claim: claim.namespace,
    Grouping.CLASS: lambda claim: claim.device_class,
    Grouping.NODE: lambda claim: claim.node,
    Grouping.POOL: lambda claim: claim.pool,
}


def _unclaimed(costing: _Costing, name: str, one: UnclaimedTime) -> UsageRow:
    price = costing.per_hour(one.model, WHOLE, one.node)
    hours = one.seconds / 3600
    return UsageRow(name, unclaimed=hours, gpu_hours=hours, unclaimed_cost=None if price is None else hours * price)


def _added(rows: Iterable[UsageRow]) -> Iterable[UsageRow]:
    found: dict[str, UsageRow] = {}
    for row in rows:
        found[row.name] = found[row.name].plus(row) if row.name in found else row
    return found.values()


def _idle(counted: UsageCounts, costing: _Costing) -> Iterable[IdleClaim]:
    found = []
    for one in counted.claims:
        if is_idle(one):
            price, hours = costing.per_hour(one.model, one.profile, one.node), idle_hours(one)
            cost = None if price is None else hours * one.devices * price
            found.append(IdleClaim(one.namespace, one.name, one.devices, one.model, one.profile, hours, cost))
    return sorted(found, key=lambda one: (-(one.cost or 0), -one.hours * one.devices, one.namespace, one.name))


def _sizes(counted: UsageCounts, costing: _Costing) -> Iterable[SizeAdvice]:
    found = []
    for one in counted.claims:
        size, reason = size_for(one)
        if size is None:
            found.append(SizeAdvice(one.namespace, one.name, one.model, one.profile, "", reason, one.uid))
            continue
        saved = (costing.part(one.model, one.profile) - size.gpu_part) * one.devices
        before, after = (costing.per_hour(one.model, name, one.node) for name in (one.profile, size.name))
        money = None if before is None or after is None else (before - after) * one.devices
        found.append(
            SizeAdvice(one.namespace, one.name, one.model, one.profile, size.name, reason, one.uid, saved, money)
        )
    return sorted(found, key=lambda one: (not one.profile, -one.gpus_saved, one.namespace, one.name))


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


# The usage report as a document for programs, and as rows for spreadsheets.

COLUMNS = (
    "name", "allocatedHours", "busyHours", "idleHours", "unmeasuredHours", "unclaimedHours", "gpuHours",
    "cost", "idleCost", "unclaimedCost",
)  # fmt: skip


def usage_document(report: UsageReport) -> OutputDocument:
    """Return the document of a report."""
    counted = report.counted
    return OutputDocument(
        DocumentKind.USAGE_REPORT,
        {
            "source": counted.source,
            "begin": counted.begin.isoformat() if counted.begin else None,
            "end": counted.end.isoformat(),
            "by": str(report.by),
            "currency": report.currency,
            "rows": [_row(row) for row in report.rows],
            "total": _row(report.total),
            "idleClaims": [_idle_claim(one) for one in report.idle],
            "sizes": [_size(one) for one in report.sizes],
            "whatIf": plain(report.what_if),
            "unpriced": list(report.unpriced),
            "notes": list(report.notes),
        },
    )


def csv_rows(report: UsageReport) -> Iterator[list[str]]:
    """Yield the header and one row for each name, then the total."""
    yield [str(report.by), *COLUMNS[1:], "currency"]
    for row in (*report.rows, report.total):
        cells = ("" if value is None else str(value) for value in _row(row).values())
        yield [*map(_harmless, cells), report.currency]


def hours(value: float) -> float:
    """Return hours, rounded to four decimals, which is less than a second."""
    return round(value, 4)


def money(value: float | None) -> float | None:
    """Return an amount of money, rounded to the cent."""
    return None if value is None else round(value, 2)


def _row(row: UsageRow) -> dict[str, Any]:
    values = (
        row.name, hours(row.allocated), hours(row.busy), hours(row.idle), hours(row.unmeasured), hours(row.unclaimed),
        hours(row.gpu_hours), money(row.cost), money(row.idle_cost), money(row.unclaimed_cost),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _idle_claim(one: IdleClaim) -> dict[str, Any]:
    return {
        "namespace": one.namespace, "name": one.name, "devices": one.devices, "model": one.model,
        "profile": one.profile, "hours": hours(one.hours), "cost": money(one.cost),
    }  # fmt: skip


def _size(one: SizeAdvice) -> dict[str, Any]:
    return {
        "namespace": one.namespace, "name": one.name, "model": one.model, "profile": one.current,
        "advice": one.profile or None, "reason": one.reason, "gpusSaved": round(one.gpus_saved, 6),
        "savedPerHour": money(one.saved_per_hour),
    }  # fmt: skip


def _harmless(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula, because tenants choose the names in it."""
    return (
        f"'{cell}" if cell[:1] in {"=", "+", "@", "\t", "\r"} or (cell[:1] == "-" and not cell[1:2].isdigit()) else cell
    )
