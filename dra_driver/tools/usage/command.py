"""`dra-driver usage`: what GPUs were used for, what that costs, and what could be saved.

In: a Prometheus, or the agents of a cluster; a price table. Out: a table, JSON, YAML, CSV or HTML. It only reads.
"""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.tools.options import access_of, context_option, kubeconfig_option, namespace_option
from dra_driver.tools.output import Column, console, print_text, printable, show_table, write_document
from dra_driver.tools.usage.advice import WhatIf
from dra_driver.tools.usage.from_agents import NodeKind, PriceTable
from dra_driver.tools.usage.usage_counts import UsageCounts
from dra_driver.tools.usage.usage_document import Grouping, UsageReport, UsageRow
from dra_driver.tools.world.access import unseen_sentences
from dra_driver.tools.world.fields import plural

# The period of a report, from the options of the command line.

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST = timedelta(days=400)


def period_of(since: str, begin: str, end: str, now: datetime) -> tuple[datetime, datetime]:
    """Return the beginning and the end; `since` counts back from the end. Raises: UsageError("usage.period")."""
    last = _moment("--to", end) if end else now
    first = _moment("--from", begin) if begin else last - _length(since)
    if not timedelta(minutes=1) <= last - first <= LONGEST:
        raise UsageError("period", f"from {first.isoformat()} to {last.isoformat()}: expected a minute to 400 days")
    return first, min(last, now)


def _length(text: str) -> timedelta:
    matched = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if matched is None:
        raise UsageError("period", f"--since={text[:40]!r} is not a length of time", hint="for example 12h, 7d or 4w")
    return min(timedelta(**{_UNITS[matched[2]]: int(matched[1])}), LONGEST + timedelta(days=1))


def _moment(flag: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "for example 2026-11-20 or 2026-11-20T18:00:00Z"
        raise UsageError("period", f"{flag}={text[:40]!r} is not a date or a time", hint=hint) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


# The usage report as tables and sentences for people.

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


_FORMS = ["table", "json", "yaml", "csv"]


@click.command(name="usage")
@click.option("--prometheus", metavar="URL", default="", help="Read from this Prometheus.")
@click.option("--token-file", metavar="FILE", default="", help="A file with a bearer token for it.")
@click.option(
    "--ca-file", metavar="FILE", default="", help="The CA that signed its certificate [default: the system's]."
)
@click.option("--since", metavar="TIME", default="7d", show_default=True, help="How far to look back: 12h, 7d, 4w.")
@click.option("--from", "begin", metavar="TIME", default="", help="The beginning instead, such as 2026-11-20T18:00Z.")
@click.option("--to", "end", metavar="TIME", default="", help="The end [default: now].")
@click.option("--by", type=click.Choice(list(map(str, Grouping))), default="namespace", show_default=True)
@click.option("--prices", type=click.Path(path_type=Path), default=None, help="A price table (docs/cost.md).")
@click.option("--node-prices", is_flag=True, help="Price nodes by their labels: asks the cluster for its nodes.")
@click.option("--what-if", "tries", is_flag=True, help="Try the advised sizes: reads the cluster's slices and claims.")
@kubeconfig_option
@context_option
@namespace_option("Only the usage of this namespace [default: of all].")
@click.option("--output", "-o", type=click.Choice(_FORMS), default="table", show_default=True)
def usage_command(output: str, by: str, prices: Path | None, **given: Any) -> int:
    """Show what GPUs were used for, what that cost, and what could be saved.

    \b
    dra-driver usage --prometheus https://prometheus:9090 --prices prices.yaml
    dra-driver usage --prometheus http://localhost:9090 --by claim --since 30d
    dra-driver usage --by node            without a Prometheus: what the agents
                                          have counted since they began

    Exit status 5: Prometheus or the agents could not be asked.
    """  # noqa: D301
    from dra_driver.tools.usage.from_agents import read_prices
    from dra_driver.tools.usage.usage_document import report_of

    table = read_prices(prices) if prices else PriceTable()
    counted = _counted(given)
    report = report_of(counted, Grouping(by), table, _nodes(given))
    if given["tries"]:
        report = replace(report, what_if=_what_if(report, given))
    _write(report, output)
    for note in report.notes:
        print(printable(f"dra-driver: {note}"), file=sys.stderr)
    return ExitCode.OK


def _counted(given: dict[str, Any]) -> UsageCounts:
    now = datetime.now(UTC)
    if given["prometheus"]:
        from dra_driver.tools.usage.from_prometheus import PrometheusAddress, read_prometheus

        address = PrometheusAddress(given["prometheus"], given["token_file"], given["ca_file"])
        begin, end = period_of(given["since"], given["begin"], given["end"], now)
        return read_prometheus(address, begin, end, given["namespace"])
    for flag, name in (("--token-file", "token_file"), ("--ca-file", "ca_file"), ("--from", "begin"), ("--to", "end")):
        if given[name]:
            raise UsageError("period", f"{flag} needs --prometheus, because agents only know their present counts")
    from dra_driver.tools.usage.from_agents import read_agents

    return read_agents(access_of(given), now, given["namespace"])


def _nodes(given: dict[str, Any]) -> dict[str, NodeKind]:
    """Return the kind by which each node is priced, with --node-prices; otherwise nothing. Raises: DriverError."""
    if not given["node_prices"]:
        return {}
    from dra_driver.kube import paths
    from dra_driver.kube.watch import objects
    from dra_driver.tools.usage.from_agents import node_kinds

    api = access_of(given).connect()
    try:
        return node_kinds(objects(api, paths.NODES))
    finally:
        api.close()


def _what_if(report: UsageReport, given: dict[str, Any]) -> WhatIf:
    """Return what the advice would free in the cluster. Raises: DriverError."""
    from dra_driver.tools.usage.advice import UsageState, what_if
    from dra_driver.tools.world.fleet import Cluster

    access = access_of({**given, "namespace": "", "everywhere": True})
    cluster = Cluster(access)
    driver = next((claim.driver for claim in report.counted.claims), "")
    try:
        state = UsageState(cluster.slices(), cluster.claims(), cluster.kubernetes(), driver)
    finally:
        cluster.close()
    for one in unseen_sentences(access.unseen):
        print(printable(f"dra-driver: {one}"), file=sys.stderr)
    return what_if(report.sizes, state)


def _write(report: UsageReport, output: str) -> None:
    from dra_driver.tools.usage.usage_document import csv_rows, usage_document

    if output == "table":
        show_usage(report)
    elif output == "csv":
        rows = ([printable(str(cell)) for cell in row] for row in csv_rows(report))
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        write_document(usage_document(report), output)
