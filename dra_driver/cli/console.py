"""`dra-driver console`: show the fleet and its claims in a browser, and try selectors there.

In: a cluster, files or profiles. Out: an address to open; pages are served there until the command is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from dra_driver.cli.inputs.access import access_of, context_option, kubeconfig_option, namespace_option
from dra_driver.cli.inputs.mig_option import mig_option

if TYPE_CHECKING:
    from dra_driver.views.access import ClusterAccess
    from dra_driver.views.board.board import Board
    from dra_driver.views.progress import ProgressLines
    from dra_driver.web.lookups.lookups import UsageSource


def usage_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the source of usage data."""
    for decorate in (
        click.option("--prices", metavar="FILE", default="", envvar="PRICES", help="A price table (docs/cost.md)."),
        click.option("--prometheus-ca-file", metavar="FILE", default="", help="The CA that signed its certificate."),
        click.option("--prometheus-token-file", metavar="FILE", default="", help="A file with a bearer token for it."),
        click.option(
            "--prometheus",
            metavar="URL",
            default="",
            envvar="PROMETHEUS",
            help="Show usage and dashboards, read from this Prometheus.",
        ),
    ):
        function = decorate(function)
    return function


def usage_source(given: dict[str, Any]) -> UsageSource:
    """Return the source of usage data that the options name."""
    from dra_driver.web.lookups.lookups import UsageSource

    names = ("prometheus", "prometheus_token_file", "prometheus_ca_file", "prices")
    return UsageSource(*(given[name] for name in names))


@click.command(name="console")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Slices, claims and pods, instead of a cluster."
)
@click.option(
    "--fleet", "profiles", multiple=True, metavar="PROFILE[=N]", help="Simulated nodes, instead of a cluster."
)
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default=None,
    help="The version whose rules apply [default: the cluster's, 1.35].",
)
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME=BOOL", help="A feature gate that differs from the default."
)
@mig_option
@kubeconfig_option
@context_option
@namespace_option("The namespace to read if you may not read all [default: the kubeconfig's].")
@usage_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port on 127.0.0.1 [default: a free one].")
@click.option("--open", "opens", is_flag=True, help="Open the address in this machine's browser.")
def console_command(port: int, opens: bool, **given: Any) -> None:
    """Show the fleet in a browser, and try selectors on it.

    \b
    dra-driver console                                  the current cluster, with your own rights
    dra-driver console --fleet demo-h100                simulated nodes; no cluster is needed
    dra-driver console --fleet dgx-h100=1000 --open     also open the browser
    dra-driver console -f slices.yaml -f claims.yaml    the output of kubectl get -o yaml

    The address that is printed works once, in one browser. The pages are served on 127.0.0.1 only.
    """  # noqa: D301
    from functools import partial

    from dra_driver.web.console import Console

    access = None if given["files"] or given["profiles"] else access_of(given)
    if access is not None:
        access.connect().close()  # so that bad credentials are an error of this command, not of a page
    console = Console(port)
    console.start(partial(_load, given, access), access, usage_source(given))
    click.echo(f"The console is at {console.address}\n(this address works once; Ctrl-C ends the console)")
    if opens:
        click.launch(console.address)
    console.serve()


def _load(given: dict[str, Any], access: ClusterAccess | None, lines: ProgressLines) -> Board:
    """Return the board of what the options name. Raises: InputError, UsageError."""
    from dra_driver.cli.inputs.gates import given_gates
    from dra_driver.views.board.board import Board
    from dra_driver.views.worlds.reading import world_of_files
    from dra_driver.views.worlds.rules import DEFAULT_VERSION, apply_rules
    from dra_driver.views.worlds.simulated_nodes import add_profiles

    if access is not None:
        return Board.of_cluster(access.context or "cluster")
    world = world_of_files(given["files"], lines)
    gates = given_gates(given["gates"], given["kubernetes"] or DEFAULT_VERSION)
    rules = apply_rules(world, given["kubernetes"], gates, given["mig"])
    add_profiles(world, given["profiles"])
    world.complete()
    return Board.of_world(world, rules, ", ".join([*given["files"], *given["profiles"]]))
