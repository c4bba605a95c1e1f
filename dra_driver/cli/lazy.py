"""A group of commands whose modules are imported only when one of the commands is called.

In: a table of names. Out: a click group. `--help` is written from the table alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: its module below `dra_driver.cli` (which has the attribute `command`), and its line in --help."""

    module: str
    summary: str


class LazyGroup(click.Group):
    """Commands by name, from a table. `others` are listed in --help but not run by this group."""

    def __init__(
        self, *args: Any, table: Mapping[str, CommandEntry], others: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._others = others or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the commands in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; return None if the table has no such name."""
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(f"dra_driver.cli.{entry.module}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table without importing anything."""
        rows = [*self._others.items(), *((name, entry.summary) for name, entry in self._table.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
