"""The usage report as a document for programs, and as rows for spreadsheets.

In: a report. Out: a document, and rows of texts. Hours are rounded to seconds, money to cents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.usage.advice import IdleClaim, SizeAdvice
from dra_driver.views.usage.report import UsageReport, UsageRow

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
