"""The option `--mig` of commands that simulate nodes: how the nodes' agents would offer partitions."""

from __future__ import annotations

import click

mig_option = click.option(
    "--mig",
    type=click.Choice(["dynamic", "static"]),
    default="dynamic",
    show_default=True,
    help="Partitions of simulated nodes: made on demand, if DRAPartitionableDevices is on, or only the existing ones.",
)
