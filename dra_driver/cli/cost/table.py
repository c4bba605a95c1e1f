"""The usage report as tables and sentences for people."""

from __future__ import annotations

from typing import Any

from dra_driver.cli.output import Column, console, print_text, show_table
from dra_driver.views.usage.report import UsageReport, UsageRow
from dra_driver.views.usage.what_if import WhatIf
from dra_driver.views.wording import plural

MAX_ROWS = 50
MAX_ADVICE = 10
_HOURS = ("allocated h", "busy h", "idle h", "unmeasured h", "unclaimed h")
_MONEY = ("cost", "idle", "unclaimed")


def show_usage(report: UsageReport) -> None:
    """Print the report."""
    out = console()
    has_money = any(value is not None for value in (report.total.cost, report.total.unclaimed_cost))
    titles = [str(report.by), *_HOURS, *(f"{name} {report.currency}" for name in _MONEY if has_money)]
    columns = [Column(title, is_number=at > 0) for at, title in enumerate(titles)]
    rows = [_cells(row, has_money=has_money) for row in report.rows[:MAX_ROWS]]
    show_table(out, headline(report), columns, [*rows, _cells(report.total, has_money=has_money)])
    if len(report.rows) > MAX_ROWS:
        print_text(out, f"{len(report.rows) - MAX_ROWS} more: -o csv has all of them.")
    _show_idle(out, report)
    _show_sizes(out, report)
    for model in report.unpriced:
        print_text(out, f"There is no price for {model}, so its hours are not counted in the cost.")


def headline(report: UsageReport) -> str:
    """Return a sentence on the source of the figures, and the period that they cover."""
    counted = report.counted
    end = f"{counted.end:%Y-%m-%d %H:%M} UTC"
    if counted.begin is None:
        return f"From {counted.source}, until {end}. Claims that ended more than five minutes ago are missing."
    return f"From {counted.source}, {counted.begin:%Y-%m-%d %H:%M} to {end}."


def idle_sentence(one: Any, currency: str) -> str:
    """Return a line on how long a claim was idle, and what that cost."""
    cost = "" if one.cost is None else f", {amount(one.cost)} {currency}"
    kind = one.model if one.profile == "gpu" else f"{one.profile} of {one.model}"
    return f"{one.namespace}/{one.name}: {one.hours:,.0f} h idle, {one.devices} \u00d7 {kind}{cost}"


def size_sentence(one: Any, currency: str) -> str:
    """Return a line on the profile that a claim should have, and why."""
    money = "" if one.saved_per_hour is None else f", saves {amount(one.saved_per_hour)} {currency} an hour"
    return f"{one.namespace}/{one.name}: {one.current} \u2192 {one.profile}: {one.reason}{money}"


def what_if_sentence(tried: WhatIf) -> str:
    """Return a sentence on what would become free if the advice were followed."""
    where = f", on {', '.join(tried.nodes)}" if tried.nodes else ""
    changes = "this change" if tried.changes == 1 else f"these {plural(tried.changes, 'change')}"
    text = f"With {changes}, {plural(tried.gpus, 'GPU')} would become free{where}."
    return text + (f" No smaller device was found for {', '.join(tried.unplaced)}." if tried.unplaced else "")


def amount(value: float) -> str:
    """Return an amount of money as text, with two decimals."""
    return f"{value:,.2f}"


def _cells(row: UsageRow, *, has_money: bool) -> list[str]:
    hours = (row.allocated, row.busy, row.idle, row.unmeasured, row.unclaimed)
    money = (row.cost, row.idle_cost, row.unclaimed_cost) if has_money else ()
    return [row.name, *(f"{one:,.1f}" for one in hours), *("-" if one is None else amount(one) for one in money)]


def _show_idle(out: Any, report: UsageReport) -> None:
    if not report.idle:
        return
    print_text(out, f"{plural(len(report.idle), 'claim')} nearly idle:")
    for one in report.idle[:MAX_ADVICE]:
        print_text(out, idle_sentence(one, report.currency), indent=2)


def _show_sizes(out: Any, report: UsageReport) -> None:
    advised = [one for one in report.sizes if one.profile]
    if advised:
        print_text(out, f"{plural(len(advised), 'claim')} for which a smaller device is enough:")
    for one in advised[:MAX_ADVICE]:
        print_text(out, size_sentence(one, report.currency), indent=2)
    if report.what_if is not None:
        print_text(out, what_if_sentence(report.what_if))
