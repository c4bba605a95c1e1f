"""`dra-driver usage`: what GPUs were used for, what that costs, and what could be saved.

In: a Prometheus, or the agents of a cluster; a price table. Out: a table, JSON, YAML, CSV or HTML. It only reads.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from dra_driver.cli.cost.period import period_of
from dra_driver.cli.inputs.access import access_of, context_option, kubeconfig_option, namespace_option
from dra_driver.cli.output import printable, write_document
from dra_driver.model.errors import ExitCode, UsageError
from dra_driver.views.access import unseen_sentences
from dra_driver.views.usage.prices import NodeKind, PriceTable
from dra_driver.views.usage.report import Grouping, UsageReport
from dra_driver.views.usage.usage_counts import UsageCounts
from dra_driver.views.usage.what_if import WhatIf

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
    from dra_driver.views.usage.prices import read_prices
    from dra_driver.views.usage.report import report_of

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
        from dra_driver.views.usage.from_prometheus import PrometheusAddress, read_prometheus

        address = PrometheusAddress(given["prometheus"], given["token_file"], given["ca_file"])
        begin, end = period_of(given["since"], given["begin"], given["end"], now)
        return read_prometheus(address, begin, end, given["namespace"])
    for flag, name in (("--token-file", "token_file"), ("--ca-file", "ca_file"), ("--from", "begin"), ("--to", "end")):
        if given[name]:
            raise UsageError("period", f"{flag} needs --prometheus, because agents only know their present counts")
    from dra_driver.views.usage.from_agents import read_agents

    return read_agents(access_of(given), now, given["namespace"])


def _nodes(given: dict[str, Any]) -> dict[str, NodeKind]:
    """Return the kind by which each node is priced, with --node-prices; otherwise nothing. Raises: DriverError."""
    if not given["node_prices"]:
        return {}
    from dra_driver.kube import paths
    from dra_driver.kube.pages import objects
    from dra_driver.views.usage.from_agents import node_kinds

    api = access_of(given).connect()
    try:
        return node_kinds(objects(api, paths.NODES))
    finally:
        api.close()


def _what_if(report: UsageReport, given: dict[str, Any]) -> WhatIf:
    """Return what the advice would free in the cluster. Raises: DriverError."""
    from dra_driver.views.fleet.cluster import Cluster
    from dra_driver.views.usage.what_if import UsageState, what_if

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
    from dra_driver.views.usage.document import csv_rows, usage_document

    if output == "table":
        from dra_driver.cli.cost.table import show_usage

        show_usage(report)
    elif output == "csv":
        rows = ([printable(str(cell)) for cell in row] for row in csv_rows(report))
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        write_document(usage_document(report), output)
